//! `scan`: pairs of a range in key order, printed as they arrive.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::OsStrExt;

use coppice_client::{Range, RangeStream};

use super::args::{Cli, RangeArgs, ScanArgs};
use super::connect::connect;
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::output::{Output, ScanEnd};
use super::page_token::PageToken;
use super::range::Bounds;
use crate::text::Coding;

/// Carries out a scan.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn run(
    cli: &Cli,
    context: Context,
    args: &ScanArgs,
    inputs: &mut Inputs<'_>,
    output: &mut Output<'_>,
) -> io::Result<Result<Exit, Failure>> {
    let context = Context { reverse: args.reverse, ..context };
    let range = match range_of(args, cli.global.coding(), inputs) {
        Ok(range) => range,
        Err(failure) => return Ok(Err(failure)),
    };
    let client = connect(cli);
    let mut stream = match client.range(range).await {
        Ok(stream) => stream,
        Err(error) => return Ok(Err(errors::failure(&error, &context))),
    };
    let count = if args.count {
        match stream.count().await {
            Ok(count) => count,
            Err(error) => return Ok(Err(errors::failure(&error, &context))),
        }
    } else {
        match print(&mut stream, args, &context, output).await? {
            Ok(count) => count,
            Err(failure) => return Ok(Err(failure)),
        }
    };
    let last = stream.last_key().filter(|_| stream.is_limited());
    let end = ScanEnd {
        count,
        positions: stream.positions().iter().map(ToString::to_string).collect(),
        ticket: stream.ticket().map(|ticket| ticket.to_string()),
        stale: args.stale,
        after: last.map(|last| PageToken { reverse: args.reverse, last: last.to_vec() }.encode()),
    };
    output.scan_end(&end, args.count)?;
    Ok(Ok(Exit::Done))
}

async fn print(
    stream: &mut RangeStream,
    args: &ScanArgs,
    context: &Context,
    output: &mut Output<'_>,
) -> io::Result<Result<u64, Failure>> {
    let mut count = 0;
    output.scan_begin()?;
    loop {
        match stream.next().await {
            Ok(Some((key, value))) => {
                output.scan_pair(count == 0, key, if args.keys_only { None } else { Some(value) })?;
                count += 1;
            }
            Ok(None) => return Ok(Ok(count)),
            Err(error) => return Ok(Err(errors::failure(&error, context))),
        }
    }
}

/// What the arguments ask for.
fn range_of(args: &ScanArgs, coding: Coding, inputs: &mut Inputs<'_>) -> Result<Range, Failure> {
    let keys = &args.keys;
    if keys.range.is_none() && keys.prefix.is_none() && keys.from.is_none() && keys.to.is_none() {
        let cause = "`..` is every key, `a..b` those from a to before b, --prefix P those that begin with P";
        return Err(Failure { next: "coppice scan ..".to_owned(), ..refused("which keys?".to_owned(), cause) });
    }
    let mut range = bounds_of("scan", keys, coding, inputs)?;
    if args.reverse {
        range = range.reverse();
    }
    if let Some(text) = &args.after {
        let token = PageToken::decode(text).filter(|token| token.reverse == args.reverse).ok_or_else(|| {
            let cause = "it is printed by a limited scan, and goes on in the same direction";
            refused(format!("`{text}` is no token of such a scan"), cause)
        })?;
        range = range.after(&token.last);
    }
    if args.count && args.limit.is_none() && args.bytes.is_none() {
        range = range.count_only();
    } else if args.keys_only || (args.count && args.bytes.is_none()) {
        // Where a limit ends the count, the next page begins behind a key: so they are read.
        range = range.keys_only();
    }
    if args.stale {
        range = range.stale();
    }
    for (flag, limit) in [("--limit", args.limit), ("--bytes", args.bytes)] {
        if limit == Some(0) {
            return Err(refused(format!("{flag} 0 would print nothing"), "a limit is at least 1"));
        }
    }
    Ok(range.limit(args.limit.unwrap_or(0)).limit_bytes(args.bytes.unwrap_or(0)))
}

/// The keys that are meant; all of them if nothing is said.
pub(super) fn bounds_of(
    verb: &str,
    args: &RangeArgs,
    coding: Coding,
    inputs: &mut Inputs<'_>,
) -> Result<Range, Failure> {
    if let Some(prefix) = &args.prefix {
        return Ok(Range::prefix(&inputs.bytes("--prefix", prefix)?));
    }
    let bounds = match &args.range {
        Some(range) => Bounds::parse(range.as_bytes(), coding),
        None => {
            let mut end = |name, key: &Option<OsString>| match key.as_deref().filter(|key| !key.is_empty()) {
                Some(key) => inputs.bytes(name, key).map(Some),
                None => Ok(None),
            };
            Bounds::of_keys(end("--from", &args.from)?, end("--to", &args.to)?, coding)
        }
    };
    let bounds = bounds.map_err(|error| {
        let cause = "a range is written `a..b`, or as --from a --to b";
        Failure::usage(format!("{verb}: {error}"), cause, format!("coppice {verb} --help"))
    })?;
    Ok(Range::between(&bounds.low, bounds.high.as_deref()))
}

fn refused(what: String, cause: &str) -> Failure {
    Failure::usage(format!("scan: {what}"), cause, "coppice scan --help")
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;
    use crate::cli::verbs::Verb;

    fn range(words: &[&str]) -> Result<Range, Failure> {
        let cli = Cli::try_parse_from(["coppice", "scan"].iter().chain(words)).expect("a scan");
        let Verb::Scan(args) = &cli.verb else { panic!("a scan") };
        let mut stdin: &[u8] = b"";
        range_of(args, Coding::Plain, &mut Inputs::new("scan", Coding::Plain, &mut stdin))
    }

    #[test]
    fn both_ends_may_stand_in_files() {
        let path = std::env::temp_dir().join(format!("coppice-scan-{}", std::process::id()));
        std::fs::write(&path, "b").expect("the temporary directory takes a file");
        let file = format!("@{}", path.display());
        let (low, high) = (range(&["--from", &file]), range(&["--to", &file]));
        let swapped = range(&["--from", "c", "--to", &file]).expect_err("a refusal");
        std::fs::remove_file(&path).expect("it is there");
        assert_eq!(low, Ok(Range::between(b"b", None)));
        assert_eq!(high, Ok(Range::between(b"", Some(b"b"))));
        assert_eq!(swapped.what, "scan: `c..b` ends before it begins");
        assert!(range(&["--to", "@/nowhere/at all"]).is_err());
    }
}
