//! The commands of the RESP port: one row each gives arity, keys and words. `COMMAND`, `COMMAND DOCS`, the manual's
//! table and the dispatch are made from it.

use super::keyspace;
use super::plan::{Arguments, Planned};
use super::reply::Reply;
use super::strings;

/// One command.
#[derive(Debug)]
pub struct Command {
    /// In capitals, as it is looked up.
    pub name: &'static str,
    /// Strings of a request, the name included; negative: at least so many.
    pub arity: i8,
    /// As Redis calls them.
    pub flags: &'static [&'static str],
    /// First key, last key (negative: from the end), step; zeros: none.
    pub keys: (i8, i8, i8),
    /// As Redis groups its manual.
    pub group: &'static str,
    /// What follows the name.
    pub arguments: &'static str,
    /// What it does, one sentence without its full stop.
    pub summary: &'static str,
    pub(super) kind: Kind,
}

/// Who carries a command out.
#[derive(Clone, Copy, Debug)]
pub(super) enum Kind {
    /// What it becomes for the cluster.
    Data(fn(&mut Arguments<'_>) -> Result<Planned, Reply>),
    /// The connection.
    Connection(Connection),
    /// The transaction.
    Transaction(Transaction),
}

/// Commands about the connection and the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Connection {
    Auth,
    Client,
    Cluster,
    Commands,
    Config,
    Echo,
    Hello,
    Info,
    Ping,
    Quit,
    ReadOnly,
    Reset,
    Select,
}

/// Commands about transactions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Transaction {
    Multi,
    Exec,
    Discard,
    Watch,
    Unwatch,
}

const READ: &[&str] = &["readonly", "fast"];
const READ_ALL: &[&str] = &["readonly"];
const WRITE: &[&str] = &["write", "denyoom", "fast"];
const WRITE_ALL: &[&str] = &["write", "denyoom"];
const REMOVE: &[&str] = &["write", "fast"];
const LOCAL: &[&str] = &["loading", "stale", "fast"];
const OPEN: &[&str] = &["noscript", "loading", "stale", "fast", "no_auth"];
const BOUND: &[&str] = &["noscript", "loading", "stale", "fast"];

const NONE: (i8, i8, i8) = (0, 0, 0);
const ONE: (i8, i8, i8) = (1, 1, 1);
const ALL: (i8, i8, i8) = (1, -1, 1);
const PAIRS: (i8, i8, i8) = (1, -1, 2);
const TWO: (i8, i8, i8) = (1, 2, 1);

macro_rules! commands {
    ($(
        $name:literal $arity:literal $flags:ident $keys:ident $group:literal $kind:expr, $arguments:literal,
        $summary:literal;
    )*) => {
        /// All of them, by name.
        pub static COMMANDS: &[Command] = &[$(Command {
            name: $name,
            arity: $arity,
            flags: $flags,
            keys: $keys,
            group: $group,
            arguments: $arguments,
            summary: $summary,
            kind: $kind,
        },)*];
    };
}

use Connection as C;
use Kind::{Connection as On, Data, Transaction as In};
use Transaction as T;

commands! {
    "APPEND" 3 WRITE ONE "string" Data(strings::append), "key value", "writes behind the end of the value; its new length";
    "AUTH" -2 OPEN NONE "connection" On(C::Auth), "[user] token", "acts for the user with this token";
    "CLIENT" -2 BOUND NONE "connection" On(C::Client), "GETNAME | ID | INFO | LIST | NO-EVICT ON|OFF | SETINFO LIB-NAME|LIB-VER text | SETNAME name", "names this connection, and lists those of this node";
    "CLUSTER" -2 LOCAL NONE "cluster" On(C::Cluster), "INFO | KEYSLOT key | MYID | NODES | SHARDS | SLOTS", "the cluster as one shard with all slots: this node is its master, the others are its replicas";
    "COMMAND" -1 LOCAL NONE "server" On(C::Commands), "[COUNT | DOCS [name ..] | GETKEYS command .. | INFO [name ..] | LIST]", "the commands that there are";
    "CONFIG" -2 BOUND NONE "server" On(C::Config), "GET pattern ..", "what clients ask for, in the names of Redis";
    "DBSIZE" 1 READ NONE "server" Data(keyspace::dbsize), "", "how many keys there are, at one moment";
    "DECR" 2 WRITE ONE "string" Data(strings::decr), "key", "counts down by 1";
    "DECRBY" 3 WRITE ONE "string" Data(strings::decrby), "key decrement", "counts down";
    "DEL" -2 REMOVE ALL "generic" Data(strings::del), "key ..", "removes keys of one partition together; how many there were";
    "DISCARD" 1 BOUND NONE "transactions" In(T::Discard), "", "forgets what was queued since MULTI";
    "ECHO" 2 LOCAL NONE "connection" On(C::Echo), "message", "answers the message";
    "EXEC" 1 BOUND NONE "transactions" In(T::Exec), "", "carries out what was queued since MULTI, together; nil if a watched key has changed";
    "EXISTS" -2 READ ALL "generic" Data(strings::exists), "key ..", "how many of the keys there are, at one moment";
    "EXPIRE" -3 REMOVE ONE "generic" Data(strings::expire), "key seconds [NX | XX | GT | LT]", "removes the key after so long";
    "EXPIREAT" -3 REMOVE ONE "generic" Data(strings::expireat), "key seconds [NX | XX | GT | LT]", "removes the key at a Unix time, by this node's clock at the command";
    "EXPIRETIME" 2 READ ONE "generic" Data(strings::expiretime), "key", "when the key is removed, in Unix time, by this node's clock";
    "GET" 2 READ ONE "string" Data(strings::get), "key", "the value";
    "GETDEL" 2 REMOVE ONE "string" Data(strings::getdel), "key", "removes the key; its value";
    "GETEX" -2 REMOVE ONE "string" Data(strings::getex), "key [EX seconds | PX ms | EXAT seconds | PXAT ms | PERSIST]", "the value, and another time to live";
    "GETRANGE" 4 READ ONE "string" Data(strings::getrange), "key start end", "a part of the value; negative: from its end";
    "GETSET" 3 WRITE ONE "string" Data(strings::getset), "key value", "writes; the value before";
    "HELLO" -1 OPEN NONE "connection" On(C::Hello), "[2 | 3 [AUTH user token] [SETNAME name]]", "chooses the protocol";
    "INCR" 2 WRITE ONE "string" Data(strings::incr), "key", "counts up by 1";
    "INCRBY" 3 WRITE ONE "string" Data(strings::incrby), "key increment", "counts up";
    "INCRBYFLOAT" 3 WRITE ONE "string" Data(strings::incrbyfloat), "key increment", "adds a decimal number";
    "INFO" -1 LOCAL NONE "server" On(C::Info), "[section ..]", "the node and the cluster, in the words of Redis";
    "KEYS" 2 READ_ALL NONE "generic" Data(keyspace::keys), "pattern", "the keys that match, ascending, at one moment; SCAN where they are many";
    "MGET" -2 READ ALL "string" Data(strings::mget), "key ..", "the values, at one moment";
    "MSET" -3 WRITE_ALL PAIRS "string" Data(strings::mset), "key value ..", "writes keys of one partition together";
    "MSETNX" -3 WRITE_ALL PAIRS "string" Data(strings::msetnx), "key value ..", "writes keys of one partition together if none is there";
    "MULTI" 1 BOUND NONE "transactions" In(T::Multi), "", "queues what follows until EXEC; all keys lie in one partition";
    "PERSIST" 2 REMOVE ONE "generic" Data(strings::persist), "key", "the key lives without end";
    "PEXPIRE" -3 REMOVE ONE "generic" Data(strings::pexpire), "key ms [NX | XX | GT | LT]", "EXPIRE in milliseconds";
    "PEXPIREAT" -3 REMOVE ONE "generic" Data(strings::pexpireat), "key ms [NX | XX | GT | LT]", "EXPIREAT in milliseconds";
    "PEXPIRETIME" 2 READ ONE "generic" Data(strings::pexpiretime), "key", "EXPIRETIME in milliseconds";
    "PING" -1 BOUND NONE "connection" On(C::Ping), "[message]", "PONG, or the message";
    "PSETEX" 4 WRITE ONE "string" Data(strings::psetex), "key ms value", "SETEX in milliseconds";
    "PTTL" 2 READ ONE "generic" Data(strings::pttl), "key", "TTL in milliseconds";
    "QUIT" -1 OPEN NONE "connection" On(C::Quit), "", "ends the connection";
    "RANDOMKEY" 1 READ_ALL NONE "generic" Data(keyspace::randomkey), "", "some key; not each as often as another";
    "RANGE" -3 READ_ALL NONE "ordered" Data(keyspace::range), "low high [LIMIT count] [NOVALUES]", "keys and values between two bounds, ascending, at one moment; bounds as ZRANGEBYLEX has them: [key, (key, -, +";
    "RANGECOUNT" 3 READ_ALL NONE "ordered" Data(keyspace::rangecount), "low high", "how many keys lie between two bounds, at one moment";
    "READONLY" 1 LOCAL NONE "cluster" On(C::ReadOnly), "", "taken: every node answers every read, linearizably";
    "READWRITE" 1 LOCAL NONE "cluster" On(C::ReadOnly), "", "taken, as READONLY is";
    "RENAME" 3 WRITE_ALL TWO "generic" Data(strings::rename), "key newkey", "moves value and time to live to another key of the partition";
    "RENAMENX" 3 WRITE_ALL TWO "generic" Data(strings::renamenx), "key newkey", "RENAME, if the other key is not there";
    "RESET" 1 OPEN NONE "connection" On(C::Reset), "", "the connection as it began";
    "REVRANGE" -3 READ_ALL NONE "ordered" Data(keyspace::revrange), "high low [LIMIT count] [NOVALUES]", "RANGE, descending";
    "SCAN" -2 READ_ALL NONE "generic" Data(keyspace::scan), "cursor [MATCH pattern] [COUNT count] [TYPE type]", "a page of keys, ascending; each page is one moment, their sequence is not";
    "SELECT" 2 BOUND NONE "connection" On(C::Select), "0", "there is one database, 0";
    "SET" -3 WRITE ONE "string" Data(strings::set), "key value [NX | XX] [GET] [EX seconds | PX ms | EXAT seconds | PXAT ms | KEEPTTL]", "writes";
    "SETEX" 4 WRITE ONE "string" Data(strings::setex), "key seconds value", "writes with a time to live";
    "SETNX" 3 WRITE ONE "string" Data(strings::setnx), "key value", "writes if the key is not there; 1 if so";
    "SETRANGE" 4 WRITE ONE "string" Data(strings::setrange), "key offset value", "writes over a part of the value; its new length";
    "STRLEN" 2 READ ONE "string" Data(strings::strlen), "key", "the length of the value";
    "TOUCH" -2 READ ALL "generic" Data(strings::exists), "key ..", "EXISTS: nothing here is evicted";
    "TTL" 2 READ ONE "generic" Data(strings::ttl), "key", "seconds left; -1: lives without end, -2: is not there";
    "TYPE" 2 READ ONE "generic" Data(strings::type_of), "key", "string, or none";
    "UNLINK" -2 REMOVE ALL "generic" Data(strings::del), "key ..", "DEL";
    "UNWATCH" 1 BOUND NONE "transactions" In(T::Unwatch), "", "forgets what was watched";
    "WATCH" -2 BOUND ALL "transactions" In(T::Watch), "key ..", "EXEC is carried out only if these keys hold what they hold now";
}

/// What Redis has and Coppice has not: refused by name. Sorted within each group.
const REFUSED: &[(&str, &[&str])] = &[
    (
        "the only type here is string",
        &[
            "BITCOUNT",
            "BITFIELD",
            "BITFIELD_RO",
            "BITOP",
            "BITPOS",
            "BLMOVE",
            "BLMPOP",
            "BLPOP",
            "BRPOP",
            "BRPOPLPUSH",
            "BZMPOP",
            "BZPOPMAX",
            "BZPOPMIN",
            "GEOADD",
            "GEODIST",
            "GEOHASH",
            "GEOPOS",
            "GEORADIUS",
            "GEORADIUSBYMEMBER",
            "GEORADIUSBYMEMBER_RO",
            "GEORADIUS_RO",
            "GEOSEARCH",
            "GEOSEARCHSTORE",
            "GETBIT",
            "HDEL",
            "HEXISTS",
            "HEXPIRE",
            "HEXPIREAT",
            "HEXPIRETIME",
            "HGET",
            "HGETALL",
            "HGETDEL",
            "HGETEX",
            "HINCRBY",
            "HINCRBYFLOAT",
            "HKEYS",
            "HLEN",
            "HMGET",
            "HMSET",
            "HPERSIST",
            "HPEXPIRE",
            "HPEXPIREAT",
            "HPEXPIRETIME",
            "HPTTL",
            "HRANDFIELD",
            "HSCAN",
            "HSET",
            "HSETEX",
            "HSETNX",
            "HSTRLEN",
            "HTTL",
            "HVALS",
            "LCS",
            "LINDEX",
            "LINSERT",
            "LLEN",
            "LMOVE",
            "LMPOP",
            "LPOP",
            "LPOS",
            "LPUSH",
            "LPUSHX",
            "LRANGE",
            "LREM",
            "LSET",
            "LTRIM",
            "PFADD",
            "PFCOUNT",
            "PFDEBUG",
            "PFMERGE",
            "PFSELFTEST",
            "RPOP",
            "RPOPLPUSH",
            "RPUSH",
            "RPUSHX",
            "SADD",
            "SCARD",
            "SDIFF",
            "SDIFFSTORE",
            "SETBIT",
            "SINTER",
            "SINTERCARD",
            "SINTERSTORE",
            "SISMEMBER",
            "SMEMBERS",
            "SMISMEMBER",
            "SMOVE",
            "SORT",
            "SORT_RO",
            "SPOP",
            "SRANDMEMBER",
            "SREM",
            "SSCAN",
            "SUNION",
            "SUNIONSTORE",
            "XACK",
            "XADD",
            "XAUTOCLAIM",
            "XCLAIM",
            "XDEL",
            "XGROUP",
            "XINFO",
            "XLEN",
            "XPENDING",
            "XRANGE",
            "XREAD",
            "XREADGROUP",
            "XREVRANGE",
            "XSETID",
            "XTRIM",
            "ZADD",
            "ZCARD",
            "ZCOUNT",
            "ZDIFF",
            "ZDIFFSTORE",
            "ZINCRBY",
            "ZINTER",
            "ZINTERCARD",
            "ZINTERSTORE",
            "ZLEXCOUNT",
            "ZMPOP",
            "ZMSCORE",
            "ZPOPMAX",
            "ZPOPMIN",
            "ZRANDMEMBER",
            "ZRANGE",
            "ZRANGEBYLEX",
            "ZRANGEBYSCORE",
            "ZRANGESTORE",
            "ZRANK",
            "ZREM",
            "ZREMRANGEBYLEX",
            "ZREMRANGEBYRANK",
            "ZREMRANGEBYSCORE",
            "ZREVRANGE",
            "ZREVRANGEBYLEX",
            "ZREVRANGEBYSCORE",
            "ZREVRANK",
            "ZSCAN",
            "ZSCORE",
            "ZUNION",
            "ZUNIONSTORE",
        ],
    ),
    (
        "there are no scripts: MULTI and WATCH make several commands one",
        &["EVAL", "EVALSHA", "EVALSHA_RO", "EVAL_RO", "FCALL", "FCALL_RO", "FUNCTION", "SCRIPT"],
    ),
    (
        "there are no channels",
        &[
            "PSUBSCRIBE",
            "PUBLISH",
            "PUBSUB",
            "PUNSUBSCRIBE",
            "SPUBLISH",
            "SSUBSCRIBE",
            "SUBSCRIBE",
            "SUNSUBSCRIBE",
            "UNSUBSCRIBE",
        ],
    ),
    (
        "nothing here removes all keys at once: remove what SCAN finds, or begin with an empty data directory",
        &["FLUSHALL", "FLUSHDB"],
    ),
    ("there is one database", &["MOVE", "SWAPDB"]),
    ("every answered write is on the disks of a majority already: there is nothing to wait for", &["WAIT", "WAITAOF"]),
    (
        "`coppice` operates the cluster: `coppice --help` lists its verbs",
        &[
            "ACL",
            "BGREWRITEAOF",
            "BGSAVE",
            "DEBUG",
            "FAILOVER",
            "LASTSAVE",
            "LATENCY",
            "MEMORY",
            "MODULE",
            "MONITOR",
            "PSYNC",
            "REPLCONF",
            "REPLICAOF",
            "ROLE",
            "SAVE",
            "SHUTDOWN",
            "SLAVEOF",
            "SLOWLOG",
            "SYNC",
        ],
    ),
    ("the bytes that Redis stores are not known here", &["COPY", "DUMP", "MIGRATE", "OBJECT", "RESTORE"]),
    ("every node takes every key, so nothing is asked elsewhere", &["ASKING"]),
    ("it is no command of Coppice", &["LOLWUT", "SUBSTR", "TIME"]),
];

/// Longest name that is looked up.
const NAME_BYTES_MAX: usize = 32;

/// The command of this name, in any case.
pub fn find(name: &[u8]) -> Option<&'static Command> {
    let mut capitals = [0; NAME_BYTES_MAX];
    let capitals = capitals.get_mut(..name.len())?;
    capitals.copy_from_slice(name);
    capitals.make_ascii_uppercase();
    COMMANDS.binary_search_by(|command| command.name.as_bytes().cmp(capitals)).ok().map(|at| &COMMANDS[at])
}

/// What is said of a name that is no command here.
pub(super) fn refusal(name: &[u8]) -> Reply {
    let shown = name.escape_ascii().to_string();
    let capitals = shown.to_ascii_uppercase();
    let why = REFUSED.iter().find(|(_, names)| names.contains(&capitals.as_str())).map(|(why, _)| *why);
    match why {
        Some(why) => Reply::err(format_args!("{capitals} is not supported: {why}")),
        None => {
            let shown: String = shown.chars().take(64).collect();
            Reply::err(format_args!("unknown command '{shown}': COMMAND LIST names those that there are"))
        }
    }
}

impl Command {
    /// Whether a request of so many strings can be one of this command.
    pub(super) fn takes(&self, strings: usize) -> bool {
        let wanted = usize::from(self.arity.unsigned_abs());
        if self.arity < 0 { strings >= wanted } else { strings == wanted }
    }

    /// Where the keys of a request of so many strings stand.
    pub fn keys(&self, strings: usize) -> impl Iterator<Item = usize> + use<> {
        let (first, last, step) = self.keys;
        let last = if last < 0 { strings as isize + isize::from(last) } else { isize::from(last) };
        let first = if first == 0 { last + 1 } else { isize::from(first) };
        (first..=last).step_by(usize::from(step.unsigned_abs()).max(1)).map(|at| at as usize)
    }

    /// Whether it is carried out for whoever has not shown who it is.
    pub(super) fn is_open(&self) -> bool {
        self.flags.contains(&"no_auth")
    }

    /// Its row in `COMMAND`.
    pub(super) fn row(&self) -> Reply {
        let (first, last, step) = self.keys;
        let number = |number: i8| Reply::Integer(i64::from(number));
        let flags = self.flags.iter().map(|flag| Reply::Simple(flag)).collect();
        let category = if self.flags.contains(&"write") { "@write" } else { "@read" };
        Reply::Array(vec![
            Reply::bulk(self.name.to_ascii_lowercase()),
            number(self.arity),
            Reply::Array(flags),
            number(first),
            number(last),
            number(step),
            Reply::Array(vec![Reply::Simple(category)]),
            Reply::Array(Vec::new()),
            Reply::Array(Vec::new()),
            Reply::Array(Vec::new()),
        ])
    }

    /// Its entry in `COMMAND DOCS`.
    pub(super) fn docs(&self) -> (Reply, Reply) {
        let entry = [("summary", self.summary), ("since", "1.0.0"), ("group", self.group)];
        let pairs = entry.map(|(name, text)| (Reply::bulk(name), Reply::bulk(text)));
        (Reply::bulk(self.name.to_ascii_lowercase()), Reply::Map(pairs.into()))
    }
}

/// The manual's table of commands.
#[must_use]
pub fn table() -> String {
    let row = |command: &Command| {
        let arguments = command.arguments.replace('|', "\\|");
        let typed = if arguments.is_empty() { String::new() } else { format!(" {arguments}") };
        format!("| `{}{typed}` | {} |\n", command.name, command.summary)
    };
    let rows: String = COMMANDS.iter().map(row).collect();
    format!("| command | what it does |\n|---|---|\n{rows}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_sorted_and_found_in_any_case() {
        assert!(COMMANDS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for command in COMMANDS {
            assert!(std::ptr::eq(find(command.name.to_ascii_lowercase().as_bytes()).expect("known"), command));
            assert!(REFUSED.iter().all(|(_, names)| !names.contains(&command.name)), "{}", command.name);
            let first = usize::try_from(command.keys.0).expect("no negative");
            assert!(first == 0 || usize::from(command.arity.unsigned_abs()) > first, "{}", command.name);
        }
        assert!(find(b"nothing").is_none() && find(&[b'a'; 100]).is_none() && find(b"").is_none());
    }

    #[test]
    fn keys_stand_where_the_table_says() {
        let keys = |name: &[u8], strings| find(name).expect("known").keys(strings).collect::<Vec<_>>();
        assert_eq!(keys(b"get", 2), [1]);
        assert_eq!(keys(b"mset", 5), [1, 3]);
        assert_eq!(keys(b"del", 4), [1, 2, 3]);
        assert_eq!(keys(b"rename", 3), [1, 2]);
        assert_eq!(keys(b"ping", 2), [0; 0]);
    }

    #[test]
    fn what_is_not_there_is_refused_by_name() {
        let Reply::Error(text) = refusal(b"lpush") else { panic!("no error") };
        assert_eq!(text, "ERR LPUSH is not supported: the only type here is string");
        let Reply::Error(text) = refusal(b"no\nsuch") else { panic!("no error") };
        assert_eq!(text, "ERR unknown command 'no\\nsuch': COMMAND LIST names those that there are");
    }
}
