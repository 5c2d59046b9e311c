//! The data verbs: `get`, `put`, `insert`, `delete`, `cas`, `ttl`, `scan`.

use std::io;
use std::time::Duration;

use coppice_btree::{Edit, Expiry, ExpiryCondition, OpResult, Returns, Update};
use coppice_client::{Answer, Client, Command, Operation, Output as ClientOutput, ReadMode, ResumeToken};

use super::args::{Cli, PutArgs, ResumeArgs};
use super::connect::connect;
use super::errors::{self, Context};
use super::failure::{Exit, Failure};
use super::input::Inputs;
use super::output::{Output, WriteOutcome};
use super::scan;
use super::verbs::Verb;

/// Carries out a data verb.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub async fn run(cli: &Cli, context: Context, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    let mut stdin = io::stdin();
    let mut inputs = Inputs::new(context.verb, cli.global.coding(), &mut stdin);
    if let Verb::Scan(args) = &cli.verb {
        return scan::run(cli, context, args, &mut inputs, output).await;
    }
    let asked = match asked(&cli.verb, &mut inputs) {
        Ok(asked) => asked,
        Err(failure) => return Ok(Err(failure)),
    };
    let client = connect(cli);
    let answer = match carry_out(&client, &asked, &context).await {
        Ok(answer) => answer,
        Err(failure) => return Ok(Err(failure)),
    };
    print(&asked.operation, &answer, output)
}

/// What a verb asks for.
struct Asked {
    operation: Operation,
    resume: Option<ResumeToken>,
    stale: bool,
}

fn asked(verb: &Verb, inputs: &mut Inputs<'_>) -> Result<Asked, Failure> {
    let (operation, resume, stale) = match verb {
        Verb::Put(PutArgs { pair, ttl }) => {
            let key = inputs.bytes("KEY", &pair.key)?;
            let value = inputs.bytes("VALUE", &pair.value)?;
            let put = match ttl {
                None => Operation::put(key, value),
                Some(ttl) => Operation::update(key, put_with_ttl(&value, *ttl)),
            };
            (put, Some(&pair.resume), false)
        }
        Verb::Ttl(args) => (Operation::look(inputs.bytes("KEY", &args.key)?), None, false),
        Verb::Insert(args) => {
            let key = inputs.bytes("KEY", &args.key)?;
            (Operation::insert(key, inputs.bytes("VALUE", &args.value)?), Some(&args.resume), false)
        }
        Verb::Delete(args) => (Operation::delete(inputs.bytes("KEY", &args.key)?), Some(&args.resume), false),
        Verb::Cas(args) => {
            let (key, old) = (inputs.bytes("KEY", &args.key)?, inputs.bytes("OLD", &args.old)?);
            (Operation::cas(key, old, inputs.bytes("NEW", &args.new)?), Some(&args.resume), false)
        }
        Verb::Get(args) => (Operation::get(inputs.bytes("KEY", &args.key)?), None, args.stale),
        other => unreachable!("not a verb on one key: {other:?}"),
    };
    let resume = resume.map_or(Ok(None), |resume| token_of(resume, verb.name()))?;
    Ok(Asked { operation, resume, stale })
}

fn put_with_ttl(value: &[u8], ttl: Duration) -> Update<'_> {
    let milliseconds = u64::try_from(ttl.as_millis()).unwrap_or(u64::MAX);
    let expiry = Expiry::After { milliseconds, only: ExpiryCondition::Always };
    Update::new(Edit::Set(value)).expiring(expiry).returning(Returns::Previous)
}

fn token_of(args: &ResumeArgs, verb: &'static str) -> Result<Option<ResumeToken>, Failure> {
    let Some(text) = &args.token else { return Ok(None) };
    text.parse().map(Some).map_err(|_| {
        Failure::usage(
            format!("{verb}: `{text}` is no resume token"),
            "it is printed with the error of the command whose outcome is unknown",
            format!("coppice {verb} --help"),
        )
    })
}

async fn carry_out(client: &Client, asked: &Asked, context: &Context) -> Result<Answer<OpResult>, Failure> {
    let command = Command::One(asked.operation.clone());
    let answer = match (&asked.operation, asked.resume) {
        (Operation::Get { key }, _) => {
            let mode = if asked.stale { ReadMode::Stale } else { ReadMode::Leader };
            client.get_as(key.clone(), mode).await.map(|answer| answer.map(|value| OpResult::Get { value }))
        }
        // A read, as a get is.
        (Operation::Look { .. }, _) => client.execute(vec![asked.operation.clone()]).await.remove(0),
        (_, Some(token)) => client.resume(token, command).await.map(one),
        (_, None) => client.command(command).await.map(one),
    };
    answer.map_err(|error| errors::failure(&error, context))
}

/// The result of the one operation that a command of ours has.
fn one(answer: Answer<ClientOutput>) -> Answer<OpResult> {
    answer.map(|output| match output {
        ClientOutput::One(result) => result,
        other => unreachable!("the client library answers one operation with one result, not {other:?}"),
    })
}

fn print(
    operation: &Operation,
    answer: &Answer<OpResult>,
    output: &mut Output<'_>,
) -> io::Result<Result<Exit, Failure>> {
    let key = operation.key();
    let position = answer.position.to_string();
    let outcome = match &answer.output {
        OpResult::Get { value } => return output.get(key, value.as_deref(), &position).map(Ok),
        OpResult::Put { previous } => WriteOutcome::Done { previous: previous.as_deref() },
        OpResult::Insert { present: None } => WriteOutcome::Done { previous: None },
        OpResult::Insert { present } => WriteOutcome::Refused { word: "exists", current: present.as_deref() },
        OpResult::Delete { previous: None } => WriteOutcome::NotFound,
        OpResult::Delete { previous } => WriteOutcome::Done { previous: previous.as_deref() },
        OpResult::Cas { done: true, current } => WriteOutcome::Done { previous: current.as_deref() },
        OpResult::Cas { done: false, current } => {
            WriteOutcome::Refused { word: "mismatch", current: current.as_deref() }
        }
        // A put with --ttl has no condition.
        OpResult::Update { value, .. } => WriteOutcome::Done { previous: value.as_deref() },
        OpResult::Look { exists, remaining, .. } => {
            let left = exists.then_some(remaining.map(Duration::from_millis));
            return output.ttl(key, left, &position).map(Ok);
        }
    };
    output.write(key, &outcome, &position).map(Ok)
}
