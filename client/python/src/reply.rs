//! Results and errors as Python's objects.

use std::sync::Arc;

use coppice_client::{Cas, Error, RangeStream, Reason, UpdateOutcome, Value};
use pyo3::prelude::*;
use pyo3::sync::PyOnceLock;
use pyo3::types::{PyBytes, PyList, PyTuple};
use tokio::sync::Mutex;

/// Pairs of a range that go to Python at once, and their bytes.
const PAIRS_AT_ONCE: usize = 512;
const BYTES_AT_ONCE: usize = 256 << 10;

/// A range that is being read.
#[pyclass(frozen, module = "coppice")]
pub struct Scan(pub Arc<Mutex<Reader>>);

#[pymethods]
impl Scan {
    /// Ends the reading, unless a call waits for it: dropping the range does the same.
    fn close(&self) {
        if let Ok(mut reader) = self.0.try_lock() {
            *reader = Reader::default();
        }
    }
}

/// What reads a range.
#[derive(Default)]
pub struct Reader {
    /// None: it has ended.
    range: Option<RangeStream>,
    /// What it ended with, until the pairs before it are given out.
    error: Option<Error>,
}

impl Reader {
    /// The next pairs; no pairs: the end.
    pub async fn next(&mut self) -> Result<Reply, Error> {
        let (mut pairs, mut bytes) = (Vec::new(), 0);
        while let Some(range) = &mut self.range
            && pairs.len() < PAIRS_AT_ONCE
            && bytes < BYTES_AT_ONCE
        {
            match range.next().await {
                Ok(Some((key, value))) => {
                    bytes += key.len() + value.len();
                    pairs.push((key.into(), value.into()));
                }
                end => (self.range, self.error) = (None, end.err()),
            }
        }
        match self.error.take() {
            Some(error) if pairs.is_empty() => Err(error),
            error => {
                self.error = error;
                Ok(Reply::Pairs(pairs))
            }
        }
    }
}

/// What a call answers.
pub enum Reply {
    /// Nothing.
    Nothing,
    /// A value, if there is one.
    Value(Option<Value>),
    /// Yes or no.
    Whether(bool),
    /// A number.
    Number(i64),
    /// A time.
    Seconds(f64),
    /// What a compare-and-set came to.
    Cas(Cas),
    /// Why an update was not done.
    NotDone(UpdateOutcome),
    /// Why one of several calls was not answered.
    Error(Error),
    /// Results of several operations; none: more than an answer can hold.
    Results(Option<Vec<Reply>>),
    /// The guard that does not hold.
    Unmet(u64),
    /// Values in the order of their keys.
    Values(Vec<Option<Value>>),
    /// Pairs of a range; no pairs: its end.
    Pairs(Vec<(Value, Value)>),
    /// A range that is being read.
    Range(Box<RangeStream>),
}

impl Reply {
    /// Itself, or the error that an update which was not done is where it stands alone.
    pub fn into_python(self, py: Python<'_>) -> PyResult<Py<PyAny>> {
        match self {
            Reply::NotDone(outcome) => Err(PyErr::from_value(not_done(py, outcome)?)),
            reply => Ok(reply.into_object(py)?.unbind()),
        }
    }

    fn into_object(self, py: Python<'_>) -> PyResult<Bound<'_, PyAny>> {
        let bytes = |value: Option<Value>| match value {
            Some(value) => PyBytes::new(py, &value).into_any(),
            None => py.None().into_bound(py),
        };
        Ok(match self {
            Reply::Nothing => py.None().into_bound(py),
            Reply::Value(value) => bytes(value),
            Reply::Whether(whether) => whether.into_pyobject(py)?.to_owned().into_any(),
            Reply::Number(number) => number.into_pyobject(py)?.into_any(),
            Reply::Seconds(seconds) => seconds.into_pyobject(py)?.into_any(),
            Reply::Cas(Cas { done, current }) => class(py, "Cas")?.call1((done, bytes(current)))?,
            Reply::NotDone(outcome) => not_done(py, outcome)?,
            Reply::Error(error) => exception(py, &error)?,
            Reply::Results(None) => py.None().into_bound(py),
            Reply::Results(Some(results)) => {
                let results = results.into_iter().map(|result| result.into_object(py)).collect::<PyResult<Vec<_>>>()?;
                PyList::new(py, results)?.into_any()
            }
            Reply::Unmet(guard) => guard.into_pyobject(py)?.into_any(),
            Reply::Values(values) => PyList::new(py, values.into_iter().map(bytes))?.into_any(),
            Reply::Pairs(pairs) => {
                let pair =
                    |(key, value): (Value, Value)| PyTuple::new(py, [PyBytes::new(py, &key), PyBytes::new(py, &value)]);
                PyList::new(py, pairs.into_iter().map(pair).collect::<PyResult<Vec<_>>>()?)?.into_any()
            }
            Reply::Range(range) => {
                let reader = Reader { range: Some(*range), error: None };
                Bound::new(py, Scan(Arc::new(Mutex::new(reader))))?.into_any()
            }
        })
    }
}

/// A class of `coppice._types`.
fn class<'py>(py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyAny>> {
    static TYPES: PyOnceLock<Py<PyModule>> = PyOnceLock::new();
    let types = TYPES.get_or_try_init(py, || py.import("coppice._types").map(Bound::unbind))?;
    types.bind(py).getattr(name)
}

fn not_done(py: Python<'_>, outcome: UpdateOutcome) -> PyResult<Bound<'_, PyAny>> {
    class(py, "NotDone")?.call1((outcome.to_string(),))
}

/// The client was closed.
pub fn closed() -> PyErr {
    let said = "the client is closed; a write that waited may have been executed";
    Python::attach(|py| class(py, "Closed")?.call1((said,)).map(PyErr::from_value)).unwrap_or_else(|failed| failed)
}

/// The exception that an error is.
pub fn raise(error: Error) -> PyErr {
    Python::attach(|py| exception(py, &error).map_or_else(|failed| failed, PyErr::from_value))
}

/// The same, as an object.
pub fn exception<'py>(py: Python<'py>, error: &Error) -> PyResult<Bound<'py, PyAny>> {
    let name = match error.reason() {
        None => "OutcomeUnknown",
        Some(Reason::TimedOut) => "Timeout",
        Some(Reason::NoLeader | Reason::Unreachable | Reason::NotInitialized) => "Unavailable",
        Some(Reason::Busy(_) | Reason::QueueFull) => "Busy",
        Some(Reason::Full(_)) => "Full",
        Some(Reason::Denied(_)) => "Denied",
        Some(Reason::TooLarge(_)) => "TooLarge",
        Some(Reason::Invalid | Reason::OtherCommand) => "Invalid",
        Some(Reason::SpansPartitions) => "SpansPartitions",
        Some(Reason::Incompatible(_)) => "Incompatible",
        Some(Reason::Interrupted { .. }) => "Interrupted",
        Some(Reason::Closed) => "Closed",
    };
    let exception = class(py, name)?.call1((error.to_string(),))?;
    if let Some(token) = error.resume_token() {
        exception.setattr("resume_token", token.to_string())?;
    }
    if let Some(Reason::Interrupted { last: Some(last) }) = error.reason() {
        exception.setattr("last", PyBytes::new(py, last))?;
    }
    Ok(exception)
}
