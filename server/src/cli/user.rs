//! `user`: who may do what. Tokens are made here: nodes see their hashes only, until somebody connects with one.

use std::ffi::{OsStr, OsString};
use std::io;

use bytes::Bytes;
use clap::{Args, Subcommand};
use coppice_client::admin::Error;
use coppice_client::token::Token;
use coppice_client::wire::{AdminError, Grant, Role, UserChange, UserChangeReply, UserRow};
use serde_json::{Value, json};

use super::args::{Cli, Format};
use super::connect::admin;
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::output::Output;
use super::words;
use crate::text::to_base64;

type Outcome = io::Result<Result<Exit, Failure>>;

/// `user`
#[derive(Debug, Clone, Subcommand)]
pub enum UserVerb {
    /// List the users and what each may do
    Ls,
    /// Add a user; the first one, an admin, switches access control on
    Add {
        /// Its name
        name: String,
        /// What it may do at first.
        #[command(flatten)]
        grant: GrantArgs,
        /// Name in the client certificates that stand for it
        #[arg(long, value_name = "NAME")]
        cert: Option<String>,
        /// Make a token for it and print it once [default without --cert]
        #[arg(long)]
        token: bool,
    },
    /// Let a user do more
    Grant {
        /// Which user
        name: String,
        /// What is granted.
        #[command(flatten)]
        grant: GrantArgs,
    },
    /// Revoke what a user was granted
    Revoke {
        /// Which user
        name: String,
        /// What is revoked, as it was granted.
        #[command(flatten)]
        grant: GrantArgs,
    },
    /// Make a new token for a user and print it once; the older one ends
    Token {
        /// Which user
        name: String,
        /// Keep the older token valid until the next one is made
        #[arg(long)]
        keep: bool,
    },
    /// Remove a user; its connections end
    Remove {
        /// Which user
        name: String,
    },
}

/// What is granted or taken back.
#[derive(Debug, Clone, Args)]
pub struct GrantArgs {
    /// read, write (and read) or admin (and both)
    #[arg(long, value_name = "ROLE")]
    pub role: Role,
    /// Only for keys that begin with this
    #[arg(long, value_name = "KEY")]
    pub prefix: Option<OsString>,
}

impl GrantArgs {
    fn grant(&self, context: &Context) -> Result<Grant, Failure> {
        let mut stdin = io::stdin().lock();
        let none = OsStr::new("");
        let prefix = match self.prefix.as_deref() {
            None => Vec::new(),
            // `--prefix ''` is a variable that was not set, more often than all keys.
            Some(prefix) if prefix == none => {
                let what = format!("{}: --prefix is empty", context.verb);
                return Err(Failure::usage(what, "all keys are meant by no --prefix", "coppice user --help"));
            }
            Some(prefix) => Inputs::new(context.verb, context.coding, &mut stdin).bytes("--prefix", prefix)?,
        };
        Ok(Grant { role: self.role, prefix: Bytes::from(prefix) })
    }
}

impl UserVerb {
    /// Its name on the command line.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Ls => "user ls",
            Self::Add { .. } => "user add",
            Self::Grant { .. } => "user grant",
            Self::Revoke { .. } => "user revoke",
            Self::Token { .. } => "user token",
            Self::Remove { .. } => "user remove",
        }
    }

    /// What it asks the cluster, and the token that is in it; none: it changes nothing.
    fn change(&self, context: &Context) -> Result<Option<(UserChange, Option<Token>)>, Failure> {
        let made = || Token::generate().map_err(|error| no_random_bits(context, &error));
        let named = |name: &String| name.clone();
        Ok(Some(match self {
            Self::Ls => return Ok(None),
            Self::Add { name, grant, cert, token } => {
                let grant = grant.grant(context)?;
                let token = if *token || cert.is_none() { Some(made()?) } else { None };
                let hash = token.as_ref().map(Token::hash);
                (UserChange::Add { name: named(name), grant, token: hash, certificate: cert.clone() }, token)
            }
            Self::Grant { name, grant } => {
                (UserChange::Grant { name: named(name), grant: grant.grant(context)? }, None)
            }
            Self::Revoke { name, grant } => {
                (UserChange::Revoke { name: named(name), grant: grant.grant(context)? }, None)
            }
            Self::Token { name, keep } => {
                let token = made()?;
                (UserChange::Token { name: named(name), token: token.hash(), keep: *keep }, Some(token))
            }
            Self::Remove { name } => (UserChange::Remove { name: named(name) }, None),
        }))
    }
}

fn no_random_bits(context: &Context, error: &io::Error) -> Failure {
    Failure {
        exit: Exit::Failed,
        code: "no_random_bits",
        what: format!("{}: no token can be made: {error}", context.verb),
        place: "/dev/urandom".to_owned(),
        cause: "the system gives no random bits to this process".to_owned(),
        next: "ls -l /dev/urandom".to_owned(),
    }
}

/// Carries a verb of users out.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn run(cli: &Cli, context: &Context, verb: &UserVerb, output: &mut Output<'_>) -> Outcome {
    let (change, token) = match verb.change(context) {
        Ok(Some(change)) => change,
        Ok(None) => return list(cli, context, output).await,
        Err(failure) => return Ok(Err(failure)),
    };
    let name = change.name().to_owned();
    match admin(cli).change_users(change).await {
        Ok(changed) => {
            changed_users(context, &name, token.as_ref(), &changed, output)?;
            Ok(Ok(Exit::Done))
        }
        // It may count yet: whoever asked must have the token then.
        Err(error @ (Error::Unanswered(_) | Error::Failed(AdminError::TimedOut(_)))) => {
            if let Some(token) = &token {
                writeln!(output.data, "{}", token.reveal())?;
            }
            let failure = match &error {
                Error::Failed(AdminError::TimedOut(text)) => errors::unknown(text, context),
                error => errors::admin_failure(error, context),
            };
            Ok(Err(Failure { next: words::join(["coppice", "user", "ls"]), ..failure }))
        }
        Err(error) => Ok(Err(errors::admin_failure(&error, context))),
    }
}

fn changed_users(
    context: &Context,
    name: &str,
    token: Option<&Token>,
    changed: &UserChangeReply,
    output: &mut Output<'_>,
) -> io::Result<()> {
    let behind: Vec<String> = changed.behind.iter().map(ToString::to_string).collect();
    // A token is data: `> FILE` makes the file that --token-file reads.
    let format = if token.is_some() { output.style.data() } else { output.style.admin() };
    match format {
        Format::Json | Format::Jsonl => {
            let fields = json!({
                "v": 1, "ok": true, "user": name, "token": token.map(Token::reveal),
                "switched_on": changed.is_first, "behind": behind,
            });
            writeln!(output.data, "{fields}")?;
        }
        Format::Table | Format::Raw => {
            match token {
                Some(token) => writeln!(output.data, "{}", token.reveal())?,
                None => writeln!(output.data, "ok  {} {name}", context.verb)?,
            }
            if token.is_some() {
                writeln!(output.notes, "the token of {name}, shown this once: keep it in a file for --token-file")?;
            }
            if changed.is_first {
                writeln!(
                    output.notes,
                    "access control is on: every client needs a token or a certificate from now on"
                )?;
            }
        }
    }
    if !behind.is_empty() {
        let behind = behind.join(" ");
        writeln!(output.notes, "{behind} did not confirm it: what was before counts there until it hears of this")?;
    }
    Ok(())
}

/// `user ls`
async fn list(cli: &Cli, context: &Context, output: &mut Output<'_>) -> Outcome {
    let rows = match admin(cli).users().await {
        Ok(rows) => rows,
        Err(error) => return Ok(Err(errors::admin_failure(&error, context))),
    };
    match output.style.admin() {
        Format::Json | Format::Jsonl => {
            let users: Vec<Value> = rows.iter().map(object).collect();
            writeln!(output.data, "{}", json!({ "v": 1, "users": users }))?;
        }
        Format::Table | Format::Raw => {
            let width = rows.iter().map(|row| row.name.len()).max().unwrap_or(0).max(4);
            if rows.is_empty() {
                writeln!(
                    output.notes,
                    "there are no users: access control is off (coppice user add NAME --role admin)"
                )?;
            } else {
                writeln!(output.data, "{:width$}  tokens  certificate           grants", "user")?;
            }
            for UserRow { name, grants, tokens, certificate } in &rows {
                let certificate = certificate.as_deref().unwrap_or("-");
                let grants: Vec<String> = grants.iter().map(|grant| shown(grant, context)).collect();
                let grants = if grants.is_empty() { "-".to_owned() } else { grants.join(", ") };
                writeln!(output.data, "{name:width$}  {tokens:>6}  {certificate:<20}  {grants}")?;
            }
        }
    }
    Ok(Ok(Exit::Done))
}

fn shown(grant: &Grant, context: &Context) -> String {
    match grant.prefix.is_empty() {
        true => grant.role.to_string(),
        false => format!("{} {}", grant.role, context.coding.show(&grant.prefix)),
    }
}

fn object(row: &UserRow) -> Value {
    let grant = |grant: &Grant| {
        let prefix = match std::str::from_utf8(&grant.prefix) {
            Ok(text) => Value::from(text),
            Err(_) => json!({ "b64": to_base64(&grant.prefix) }),
        };
        json!({ "role": grant.role.to_string(), "prefix": prefix })
    };
    let grants: Vec<Value> = row.grants.iter().map(grant).collect();
    json!({ "user": row.name, "tokens": row.tokens, "certificate": row.certificate, "grants": grants })
}
