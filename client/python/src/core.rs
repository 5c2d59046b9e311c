//! The verbs, each for both clients: with a token it begins and returns, without one it waits (see `engine`).

use std::future::Future;
use std::os::fd::IntoRawFd;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use coppice_client::tls::Files;
use coppice_client::{
    Client, Command, Config, Error, ManyIf, Operation, Output, Range, ReadMode, ResumeToken, Tls, Token, Value,
};
use pyo3::exceptions::{PyOSError, PyRuntimeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::PyList;

use crate::engine::Engine;
use crate::operation::{Octets, PyOperation, Reading};
use crate::reply::{Reply, Scan, closed, exception};

/// The longest timeout, in seconds: a day.
const TIMEOUT_MAX: f64 = 86_400.0;

/// A client of either kind.
#[pyclass(frozen, module = "coppice")]
pub struct Core {
    /// None: closed.
    engine: Arc<Mutex<Option<Engine>>>,
    /// What wakes the event loop, until it is taken.
    woken: Mutex<Option<UnixStream>>,
    timeout: Duration,
    /// The process that has its thread and its connections.
    process: u32,
}

impl Core {
    fn engine(&self) -> PyResult<Engine> {
        // In a child that was forked the threads are gone, and locks that they held stay held.
        if self.process != std::process::id() {
            return Err(PyRuntimeError::new_err("a client does not survive a fork: make one in each process"));
        }
        self.engine.lock().unwrap_or_else(PoisonError::into_inner).clone().ok_or_else(closed)
    }

    fn run<F>(&self, py: Python<'_>, token: Option<u64>, verb: impl FnOnce(Client) -> F) -> PyResult<Py<PyAny>>
    where
        F: Future<Output = Result<Reply, Error>> + Send + 'static,
    {
        let is_closed = || self.engine.lock().unwrap_or_else(PoisonError::into_inner).is_none();
        self.engine()?.run(py, token, self.timeout, is_closed, verb)
    }
}

impl Drop for Core {
    /// What was forked is not ended: it would wait for threads and locks that are not there.
    fn drop(&mut self) {
        if self.process != std::process::id() {
            std::mem::forget(Arc::clone(&self.engine));
        }
    }
}

fn timeout(seconds: f64) -> PyResult<Duration> {
    let positive = seconds > 0.0 && seconds <= TIMEOUT_MAX;
    let wrong = || PyValueError::new_err(format!("timeout is {seconds}; it is in seconds, above 0 and up to a day"));
    if positive { Duration::try_from_secs_f64(seconds).map_err(|_| wrong()) } else { Err(wrong()) }
}

fn read_mode(reads: &str) -> PyResult<ReadMode> {
    match reads {
        "leader" => Ok(ReadMode::Leader),
        "any" => Ok(ReadMode::AnyReplica),
        "stale" => Ok(ReadMode::Stale),
        _ => Err(PyValueError::new_err(format!("reads is {reads:?}; it is 'leader', 'any' or 'stale'"))),
    }
}

/// Bounds of a range as Python gives them: `(low, high, prefix)`.
type Bounds = (Option<Octets>, Option<Octets>, Option<Octets>);

fn range((low, high, prefix): Bounds, reads: Option<&str>) -> PyResult<Range> {
    let range = match (low, high, prefix) {
        (None, None, Some(prefix)) => Range::prefix(&*prefix.0),
        (low, high, None) => {
            let high = high.map(|high| high.0);
            Range::between(&low.map(|low| low.0).unwrap_or_default(), high.as_deref())
        }
        _ => return Err(PyValueError::new_err("a range has either a prefix, or low and high")),
    };
    Ok(match reads {
        Some(reads) => range.mode(read_mode(reads)?),
        None => range,
    })
}

async fn one(client: Client, operation: Operation, reading: Reading) -> Result<Reply, Error> {
    // A get alone is a read; as a command it would be written to the log.
    if let Operation::Get { key } = operation {
        return client.get(key).await.map(|answer| Reply::Value(answer.output));
    }
    let answer = client.command(operation).await?;
    Ok(output(answer.output, &[reading]))
}

/// What a command came to.
fn output(output: Output, readings: &[Reading]) -> Reply {
    match output {
        Output::One(result) => readings.first().map_or(Reply::Nothing, |reading| reading.reply(result)),
        Output::Many(results) => {
            Reply::Results(Some(readings.iter().zip(results).map(|(reading, result)| reading.reply(result)).collect()))
        }
        Output::Unmet(guard) => Reply::Unmet(guard),
        Output::Omitted | Output::Loaded(_) | Output::NotLoaded(_) => Reply::Results(None),
    }
}

fn parts(operations: Vec<Py<PyOperation>>) -> (Vec<Operation>, Vec<Reading>) {
    operations.iter().map(PyOperation::of).unzip()
}

#[pymethods]
impl Core {
    #[new]
    #[pyo3(signature = (endpoints, *, asynchronous, timeout, token, token_file, tls_ca, tls_cert, tls_key, reads))]
    #[allow(clippy::too_many_arguments)]
    fn new(
        endpoints: Vec<String>,
        asynchronous: bool,
        timeout: f64,
        token: Option<&str>,
        token_file: Option<PathBuf>,
        tls_ca: Option<PathBuf>,
        tls_cert: Option<PathBuf>,
        tls_key: Option<PathBuf>,
        reads: &str,
    ) -> PyResult<Core> {
        let token = match (token, token_file) {
            (Some(_), Some(_)) => return Err(PyValueError::new_err("give a token or a token_file, not both")),
            (Some(token), None) => {
                let parsed = Token::parse(token.trim());
                Some(parsed.ok_or_else(|| PyValueError::new_err("the token is none: `coppice-` and 64 hex digits"))?)
            }
            (None, Some(file)) => {
                let failed = |error| PyOSError::new_err(format!("{}: {error}", file.display()));
                Some(Token::from_file(&file).map_err(failed)?)
            }
            (None, None) => None,
        };
        let files = Files::given(tls_ca, tls_cert, tls_key).map_err(PyValueError::new_err)?;
        let failed = |error: coppice_client::tls::TlsError| PyOSError::new_err(error.to_string());
        let tls = files.map(Tls::load).transpose().map_err(failed)?;
        let timeout = self::timeout(timeout)?;
        let config = Config {
            timeout,
            connect_timeout: timeout.min(Config::default().connect_timeout),
            reads: read_mode(reads)?,
            token,
            tls,
            ..Config::default()
        };
        let (engine, woken) = if asynchronous {
            let (engine, woken) = Engine::asynchronous(endpoints, config)?;
            (engine, Some(woken))
        } else {
            (Engine::blocking(endpoints, config)?, None)
        };
        Ok(Core {
            engine: Arc::new(Mutex::new(Some(engine))),
            woken: Mutex::new(woken),
            timeout,
            process: std::process::id(),
        })
    }

    /// The same client with another timeout.
    fn with_timeout(&self, seconds: f64) -> PyResult<Core> {
        Ok(Core {
            engine: Arc::clone(&self.engine),
            woken: Mutex::default(),
            timeout: timeout(seconds)?,
            process: self.process,
        })
    }

    /// Ends the client. Calls that wait end with `Closed`, or unknown.
    fn close(&self, py: Python<'_>) {
        if self.process != std::process::id() {
            return;
        }
        let engine = self.engine.lock().unwrap_or_else(PoisonError::into_inner).take();
        py.detach(|| drop(engine));
    }

    /// The socket that becomes readable when calls have ended, which belongs to the caller from now on.
    fn take_socket(&self) -> Option<i32> {
        let woken = self.woken.lock().unwrap_or_else(PoisonError::into_inner).take();
        woken.map(IntoRawFd::into_raw_fd)
    }

    /// What has ended since the last time: a token, whether it ended well, and the result or the exception, each.
    fn completed<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyList>> {
        let completed = self.engine().map(|engine| engine.completed()).unwrap_or_default();
        let list = PyList::empty(py);
        for (token, outcome) in completed {
            let outcome = match outcome {
                Ok(reply) => reply.into_python(py).map_err(|error| error.into_value(py).into_any()),
                Err(error) => Err(exception(py, &error)?.unbind()),
            };
            let (good, object) = match outcome {
                Ok(object) => (true, object),
                Err(object) => (false, object),
            };
            list.append((token, good, object))?;
        }
        Ok(list)
    }

    /// Waits until the cluster is found.
    fn connect(&self, py: Python<'_>, token: Option<u64>) -> PyResult<Py<PyAny>> {
        self.run(py, token, |client| async move { client.map().await.map(|_| Reply::Nothing) })
    }

    fn get(&self, py: Python<'_>, token: Option<u64>, key: Octets, reads: Option<&str>) -> PyResult<Py<PyAny>> {
        let mode = reads.map(read_mode).transpose()?;
        self.run(py, token, |client| async move {
            let answer = match mode {
                Some(mode) => client.get_as(key.0, mode).await,
                None => client.get(key.0).await,
            };
            answer.map(|answer| Reply::Value(answer.output))
        })
    }

    fn one(&self, py: Python<'_>, token: Option<u64>, operation: Py<PyOperation>) -> PyResult<Py<PyAny>> {
        let (operation, reading) = PyOperation::of(&operation);
        self.run(py, token, |client| one(client, operation, reading))
    }

    /// Seconds until a key expires; none: it is absent or does not expire.
    fn ttl(&self, py: Python<'_>, token: Option<u64>, key: Octets) -> PyResult<Py<PyAny>> {
        self.run(py, token, |client| async move {
            let remaining = client.look(key.0).await?.output.remaining;
            Ok(remaining.map_or(Reply::Nothing, |remaining| Reply::Seconds(remaining as f64 / 1_000.0)))
        })
    }

    fn get_many(&self, py: Python<'_>, token: Option<u64>, keys: Vec<Octets>) -> PyResult<Py<PyAny>> {
        let keys: Vec<Value> = keys.into_iter().map(|key| key.0).collect();
        self.run(py, token, |client| async move { client.get_many(keys).await.map(Reply::Values) })
    }

    fn many(&self, py: Python<'_>, token: Option<u64>, operations: Vec<Py<PyOperation>>) -> PyResult<Py<PyAny>> {
        let (operations, readings) = parts(operations);
        self.run(py, token, |client| async move {
            let answer = client.command(Command::Many(operations.into())).await?;
            Ok(output(answer.output, &readings))
        })
    }

    fn many_if(
        &self,
        py: Python<'_>,
        token: Option<u64>,
        guards: Vec<Py<PyOperation>>,
        operations: Vec<Py<PyOperation>>,
    ) -> PyResult<Py<PyAny>> {
        let ((guards, _), (operations, readings)) = (parts(guards), parts(operations));
        self.run(py, token, |client| async move {
            Ok(match client.many_if(guards, operations).await?.output {
                ManyIf::Done(results) => output(results.map_or(Output::Omitted, Output::Many), &readings),
                ManyIf::Unmet { guard } => Reply::Unmet(guard),
            })
        })
    }

    /// Executes operations, each for itself; a result or an exception each.
    fn execute(&self, py: Python<'_>, token: Option<u64>, operations: Vec<Py<PyOperation>>) -> PyResult<Py<PyAny>> {
        let (operations, readings) = parts(operations);
        self.run(py, token, |client| async move {
            let outcomes = client.execute(operations).await;
            let reply = |(reading, outcome): (&Reading, Result<coppice_client::Answer<_>, _>)| match outcome {
                Ok(answer) => reading.reply(answer.output),
                Err(error) => Reply::Error(error),
            };
            Ok(Reply::Results(Some(readings.iter().zip(outcomes).map(reply).collect())))
        })
    }

    fn resume(
        &self,
        py: Python<'_>,
        token: Option<u64>,
        resume: &str,
        operations: Vec<Py<PyOperation>>,
        alone: bool,
    ) -> PyResult<Py<PyAny>> {
        let resume: ResumeToken =
            resume.parse().map_err(|error| PyValueError::new_err(format!("{resume:?}: {error}")))?;
        let (mut operations, readings) = parts(operations);
        let command = match operations.pop() {
            Some(operation) if alone && operations.is_empty() => Command::One(operation),
            last => {
                operations.extend(last);
                Command::Many(operations.into())
            }
        };
        self.run(py, token, |client| async move { Ok(output(client.resume(resume, command).await?.output, &readings)) })
    }

    #[pyo3(signature = (token, bounds, reverse, limit, keys_only, reads))]
    #[allow(clippy::too_many_arguments)]
    fn range(
        &self,
        py: Python<'_>,
        token: Option<u64>,
        bounds: Bounds,
        reverse: bool,
        limit: u64,
        keys_only: bool,
        reads: Option<&str>,
    ) -> PyResult<Py<PyAny>> {
        let mut range = range(bounds, reads)?.limit(limit);
        if reverse {
            range = range.reverse();
        }
        if keys_only {
            range = range.keys_only();
        }
        self.run(
            py,
            token,
            |client| async move { client.range(range).await.map(|range| Reply::Range(Box::new(range))) },
        )
    }

    /// The next pairs of a range; none: its end.
    fn next_pairs(&self, py: Python<'_>, token: Option<u64>, scan: Py<Scan>) -> PyResult<Py<PyAny>> {
        let reader = Arc::clone(&scan.get().0);
        self.run(py, token, |_| async move { reader.lock().await.next().await })
    }

    fn count(&self, py: Python<'_>, token: Option<u64>, bounds: Bounds, reads: Option<&str>) -> PyResult<Py<PyAny>> {
        let range = range(bounds, reads)?.count_only();
        self.run(py, token, |client| async move {
            let count = client.range(range).await?.count().await?;
            Ok(Reply::Number(i64::try_from(count).unwrap_or(i64::MAX)))
        })
    }

    fn delete_range(&self, py: Python<'_>, token: Option<u64>, bounds: Bounds, limit: u64) -> PyResult<Py<PyAny>> {
        let range = range(bounds, None)?.limit(limit);
        self.run(py, token, |client| async move {
            let removed = client.delete_range(range).await?;
            Ok(Reply::Number(i64::try_from(removed).unwrap_or(i64::MAX)))
        })
    }
}
