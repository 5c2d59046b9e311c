//! Who a connection is: its user, its name, what it says of itself.

use std::fmt::Write;
use std::sync::Arc;

use coppice_client::token::Token;

use super::connection::{Context, Effect};
use super::plan::syntax_error;
use super::reply::{Protocol, Reply};
use crate::access::{Access, Credentials, Rights};

/// Longest name of a connection, and of a library and its version.
const NAME_BYTES_MAX: usize = 256;

/// The user that Redis clients name if they name none.
const DEFAULT_USER: &[u8] = b"default";

/// What is said to whoever has not shown who it is.
const NO_AUTH: &str = "NOAUTH Authentication required: AUTH with a user's token";

/// What CLIENT LIST says of a connection.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ClientRow {
    /// Where it comes from.
    pub address: String,
    /// The address of this node that it came to.
    pub own_address: String,
    /// By this node's clock, in milliseconds of Unix time.
    pub since: u64,
    /// Its name.
    pub name: String,
    /// The client library that it uses, and its version.
    pub driver: [String; 2],
    /// Its user.
    pub user: Option<String>,
    /// Whether it speaks RESP3.
    pub resp3: bool,
}

impl ClientRow {
    /// Its line in CLIENT LIST.
    pub fn line(&self, id: u64, now: u64) -> String {
        let ClientRow { address, own_address, since, name, driver: [driver, version], user, resp3 } = self;
        let age = now.saturating_sub(*since) / 1_000;
        let user = user.as_deref().unwrap_or("default");
        let resp = if *resp3 { 3 } else { 2 };
        format!(
            "id={id} addr={address} laddr={own_address} name={name} age={age} db=0 user={user} lib-name={driver} \
             lib-ver={version} resp={resp}\n"
        )
    }
}

/// See the module.
#[derive(Debug)]
pub struct Identity {
    /// Its number among the connections of this node.
    pub id: u64,
    /// What CLIENT LIST says of it.
    pub row: ClientRow,
    /// Shows its user; none: nobody's.
    credentials: Credentials,
    /// What it may do, by the users of the moment it was let in.
    rights: Option<Arc<Rights>>,
}

impl Identity {
    /// Whoever connects.
    pub fn new(id: u64, row: ClientRow) -> Identity {
        Identity { id, row, credentials: Credentials::default(), rights: None }
    }

    /// Whether it may be answered: it acts for a user, or access control is off.
    pub fn is_let_in(&self) -> bool {
        self.rights.is_some()
    }

    /// What is said to whoever is not let in.
    pub fn stranger(&self, access: &Access) -> Reply {
        let forming = access.rights(&Credentials::default()).is_ok_and(|rights| rights.is_forming());
        Reply::Error(match forming {
            true => "LOADING this node does not know its cluster yet: `coppice init` forms one".to_owned(),
            false => NO_AUTH.to_owned(),
        })
    }

    /// Goes by these users; `false`: the connection ends, since it acts for nobody, or may do less than it was let in
    /// for.
    pub fn follow(&mut self, access: &Access) -> bool {
        match &self.rights {
            None => {
                self.rights = access.rights(&self.credentials).ok().filter(|rights| !rights.is_forming()).cloned();
                true
            }
            Some(rights) => match access.rights_again(&self.credentials, rights) {
                Ok(rights) => {
                    self.rights = Some(rights);
                    true
                }
                Err(_) => false,
            },
        }
    }

    /// As it connected.
    pub fn reset(&mut self, context: &mut Context<'_>, effects: &mut Vec<Effect>) {
        if self.credentials.token.is_some() {
            effects.push(Effect::Become(None));
        }
        (self.credentials, self.rights) = (Credentials::default(), None);
        (self.row.user, self.row.name, self.row.resp3) = (None, String::new(), false);
        self.follow(context.access);
        self.publish(context);
    }

    /// Shows its row to others.
    pub fn publish(&self, context: &mut Context<'_>) {
        context.node.clients().insert(self.id, self.row.clone());
    }

    /// AUTH: a token, with or without its user's name.
    pub fn authenticate(
        &mut self,
        (name, token): (Option<&[u8]>, &[u8]),
        context: &mut Context<'_>,
        effects: &mut Vec<Effect>,
    ) -> Reply {
        let name = name.filter(|name| *name != DEFAULT_USER);
        if !context.access.is_on() {
            if !self.is_let_in() {
                return self.stranger(context.access);
            }
            let off = "AUTH <token> called, and this cluster has no users: access control is off (coppice user add)";
            return match name {
                // Clients that always name a user name this one: everybody is it.
                None => Reply::OK,
                Some(_) => Reply::err(off),
            };
        }
        let wrong = |text: String, effects: &mut Vec<Effect>| {
            effects.push(Effect::Stranger(text.clone()));
            Reply::Error(format!("WRONGPASS {text}"))
        };
        let Some(parsed) = std::str::from_utf8(token).ok().and_then(Token::parse) else {
            return wrong("a user is known by its token, coppice-.., as `coppice user add` showed it".into(), effects);
        };
        let credentials = Credentials { token: Some(parsed.hash()), certificate: None };
        let rights = match context.access.rights(&credentials) {
            Ok(rights) => Arc::clone(rights),
            Err(stranger) => return wrong(stranger.to_string(), effects),
        };
        if name.is_some_and(|name| rights.user().is_none_or(|user| user.as_bytes() != name)) {
            return wrong("the token is another user's".into(), effects);
        }
        self.row.user = rights.user().map(str::to_owned);
        (self.credentials, self.rights) = (credentials, Some(rights));
        self.publish(context);
        effects.push(Effect::Become(Some(parsed)));
        Reply::OK
    }

    /// HELLO: the protocol, and perhaps AUTH and SETNAME. Nothing changes if any of it is refused.
    pub fn hello(
        &mut self,
        strings: &[&[u8]],
        context: &mut Context<'_>,
        effects: &mut Vec<Effect>,
    ) -> Result<Protocol, Reply> {
        let protocol = match strings.get(1).map(|version| &version[..]) {
            None if self.row.resp3 => Protocol::Resp3,
            None | Some(b"2") => Protocol::Resp2,
            Some(b"3") => Protocol::Resp3,
            Some(_) => return Err(Reply::Error("NOPROTO unsupported protocol version: 2 or 3".into())),
        };
        let (mut at, mut token, mut name) = (2, None, None);
        while let Some(option) = strings.get(at) {
            match (option.to_ascii_uppercase().as_slice(), &strings[at + 1..]) {
                (b"AUTH", [user, shown, ..]) => {
                    token = Some((user, shown));
                    at += 3;
                }
                (b"SETNAME", [wanted, ..]) => {
                    name = Some(checked_name(wanted)?);
                    at += 2;
                }
                _ => return Err(syntax_error()),
            }
        }
        if let Some((user, shown)) = token {
            let reply = self.authenticate((Some(user), shown), context, effects);
            if reply.is_error() {
                return Err(reply);
            }
        }
        if !self.is_let_in() {
            return Err(self.stranger(context.access));
        }
        self.row.resp3 = protocol == Protocol::Resp3;
        if let Some(name) = name {
            self.row.name = name;
        }
        self.publish(context);
        Ok(protocol)
    }

    /// CLIENT and what follows.
    pub fn client(&mut self, strings: &[&[u8]], context: &mut Context<'_>) -> Reply {
        let words: Vec<Vec<u8>> = strings[1..].iter().map(|word| word.to_ascii_uppercase()).collect();
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        match words.as_slice() {
            [b"ID"] => Reply::count(self.id),
            [b"GETNAME"] if self.row.name.is_empty() => Reply::Nil,
            [b"GETNAME"] => Reply::bulk(&self.row.name),
            [b"SETNAME", _] => match checked_name(strings[2]) {
                Ok(name) => {
                    self.row.name = name;
                    self.publish(context);
                    Reply::OK
                }
                Err(error) => error,
            },
            [b"SETINFO", option, _] => {
                let Some(which) = [&b"LIB-NAME"[..], b"LIB-VER"].iter().position(|known| known == option) else {
                    return Reply::err("CLIENT SETINFO knows LIB-NAME and LIB-VER");
                };
                match checked_name(strings[3]) {
                    Ok(text) => {
                        self.row.driver[which] = text;
                        self.publish(context);
                        Reply::OK
                    }
                    Err(error) => error,
                }
            }
            [b"INFO"] => Reply::Text(self.row.line(self.id, context.now)),
            [b"LIST", ..] => self.list(&words[1..], context),
            // No connection is closed to make way for others while it reads its answers.
            [b"NO-EVICT", b"ON" | b"OFF"] => Reply::OK,
            [b"GETNAME" | b"ID" | b"INFO" | b"SETNAME" | b"SETINFO" | b"NO-EVICT", ..] => syntax_error(),
            [b"TRACKING" | b"CACHING" | b"TRACKINGINFO" | b"GETREDIR", ..] => {
                Reply::err("CLIENT TRACKING is not supported: nothing tells clients of changes")
            }
            [other, ..] => {
                let shown: String = other.escape_ascii().to_string().chars().take(64).collect();
                Reply::err(format_args!("CLIENT {shown} is not supported: COMMAND DOCS CLIENT names what is"))
            }
            [] => syntax_error(),
        }
    }

    /// Others are shown to whoever may see all of them.
    fn list(&self, words: &[&[u8]], context: &Context<'_>) -> Reply {
        if !words.is_empty() && words != [&b"TYPE"[..], b"NORMAL"] {
            return Reply::err("CLIENT LIST takes no filter but TYPE normal");
        }
        let sees_all = self.rights.as_ref().is_some_and(|rights| rights.all_keys(coppice_client::wire::Role::Admin));
        let mut text = String::new();
        for (id, row) in &*context.node.clients() {
            if sees_all || *id == self.id {
                _ = text.write_str(&row.line(*id, context.now));
            }
        }
        Reply::Text(text)
    }
}

/// A name stands between spaces, so it has none.
fn checked_name(name: &[u8]) -> Result<String, Reply> {
    let right = name.len() <= NAME_BYTES_MAX && name.iter().all(u8::is_ascii_graphic);
    match std::str::from_utf8(name) {
        Ok(name) if right => Ok(name.to_owned()),
        _ => Err(Reply::err(format_args!(
            "a name has at most {NAME_BYTES_MAX} printable characters, and no spaces among them"
        ))),
    }
}
