//! Operations of a command, and what their results become.

use coppice_client::{
    Cas, Condition, Edit, Expiry, ExpiryCondition, OpResult, Operation, Returns, Update, UpdateOutcome, Value,
};
use pyo3::exceptions::{PyTypeError, PyValueError};
use pyo3::prelude::*;
use pyo3::types::{PyByteArray, PyBytes, PyString};

use crate::reply::Reply;

/// A key or a value, as Python's callers write one.
pub struct Octets(pub Value);

impl<'a, 'py> FromPyObject<'a, 'py> for Octets {
    type Error = PyErr;

    fn extract(object: Borrowed<'a, 'py, PyAny>) -> PyResult<Octets> {
        if let Ok(bytes) = object.cast::<PyBytes>() {
            return Ok(Octets(bytes.as_bytes().into()));
        }
        if let Ok(text) = object.cast::<PyString>() {
            return Ok(Octets(text.to_cow()?.as_bytes().into()));
        }
        if let Ok(bytes) = object.cast::<PyByteArray>() {
            return Ok(Octets(bytes.to_vec().into()));
        }
        let name = object.get_type().name()?;
        Err(PyTypeError::new_err(format!("a key or a value is bytes, bytearray or str, not {name}")))
    }
}

/// What the result of an operation becomes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Meaning {
    /// The value in it.
    Value,
    /// The sum.
    Sum,
    /// The bytes of the value.
    Length,
    /// Whether it was done.
    Done,
}

/// One operation of a command. Its constructors are the verbs of a client.
#[pyclass(frozen, name = "Operation", module = "coppice")]
pub struct PyOperation {
    operation: Operation,
    meaning: Meaning,
}

impl PyOperation {
    /// The operation, and how to read its result.
    pub fn of(operation: &Py<PyOperation>) -> (Operation, Reading) {
        let this = operation.get();
        (this.operation.clone(), Reading(this.meaning))
    }
}

/// How to read the result of an operation.
#[derive(Clone, Copy, Debug)]
pub struct Reading(Meaning);

impl Reading {
    /// The reply that a result is.
    pub fn reply(self, result: OpResult) -> Reply {
        match (self.0, result) {
            (Meaning::Done, OpResult::Update { outcome, .. }) => Reply::Whether(outcome == UpdateOutcome::Done),
            (_, OpResult::Update { outcome, .. }) if outcome != UpdateOutcome::Done => Reply::NotDone(outcome),
            (Meaning::Sum, OpResult::Update { value, .. }) => {
                let text = value.as_deref().and_then(|value| std::str::from_utf8(value).ok()?.parse().ok());
                Reply::Number(text.unwrap_or(0))
            }
            (Meaning::Length, OpResult::Update { length, .. }) => Reply::Number(i64::from(length)),
            (_, OpResult::Cas { done, current }) => Reply::Cas(Cas { done, current }),
            (_, result) => Reply::Value(result.value().cloned()),
        }
    }
}

/// The longest time to live, in seconds: a thousand years.
const TTL_MAX: f64 = 31_536_000_000.0;

/// When a key expires that stays for so many seconds at least: a part of a millisecond counts as one.
fn after(ttl: f64) -> PyResult<Expiry> {
    if ttl > 0.0 && ttl <= TTL_MAX {
        let milliseconds = (ttl * 1_000.0).ceil() as u64;
        return Ok(Expiry::After { milliseconds, only: ExpiryCondition::Always });
    }
    let said = format!("ttl is {ttl}; it is in seconds, above 0 and up to a thousand years");
    Err(PyValueError::new_err(said))
}

fn value(operation: Operation) -> PyOperation {
    PyOperation { operation, meaning: Meaning::Value }
}

fn check(key: Octets, condition: Condition<'_>) -> PyOperation {
    PyOperation { operation: Operation::check(key.0, condition), meaning: Meaning::Done }
}

#[pymethods]
impl PyOperation {
    #[staticmethod]
    #[pyo3(signature = (key, value, *, ttl=None))]
    fn put(key: Octets, value: Octets, ttl: Option<f64>) -> PyResult<PyOperation> {
        let Some(ttl) = ttl else { return Ok(self::value(Operation::put(key.0, value.0))) };
        let update = Update::new(Edit::Set(&value.0)).expiring(after(ttl)?).returning(Returns::Previous);
        Ok(self::value(Operation::update(key.0, update)))
    }

    #[staticmethod]
    fn insert(key: Octets, value: Octets) -> PyOperation {
        self::value(Operation::insert(key.0, value.0))
    }

    #[staticmethod]
    fn delete(key: Octets) -> PyOperation {
        value(Operation::delete(key.0))
    }

    #[staticmethod]
    fn get(key: Octets) -> PyOperation {
        value(Operation::get(key.0))
    }

    #[staticmethod]
    fn cas(key: Octets, expected: Octets, value: Octets) -> PyOperation {
        self::value(Operation::cas(key.0, expected.0, value.0))
    }

    #[staticmethod]
    #[pyo3(signature = (key, by=1))]
    fn increment(key: Octets, by: i64) -> PyOperation {
        let update = Update::new(Edit::Add(by)).returning(Returns::New);
        PyOperation { operation: Operation::update(key.0, update), meaning: Meaning::Sum }
    }

    #[staticmethod]
    fn append(key: Octets, value: Octets) -> PyOperation {
        let update = Update::new(Edit::Append(&value.0));
        PyOperation { operation: Operation::update(key.0, update), meaning: Meaning::Length }
    }

    #[staticmethod]
    fn delete_if(key: Octets, expected: Octets) -> PyOperation {
        let update = Update::new(Edit::Remove).when(Condition::Equals(&expected.0));
        PyOperation { operation: Operation::update(key.0, update), meaning: Meaning::Done }
    }

    #[staticmethod]
    fn expire(key: Octets, ttl: f64) -> PyResult<PyOperation> {
        let update = Update::new(Edit::Keep).expiring(after(ttl)?);
        Ok(PyOperation { operation: Operation::update(key.0, update), meaning: Meaning::Done })
    }

    #[staticmethod]
    fn persist(key: Octets) -> PyOperation {
        let update = Update::new(Edit::Keep).expiring(Expiry::Clear);
        PyOperation { operation: Operation::update(key.0, update), meaning: Meaning::Done }
    }

    #[staticmethod]
    fn rename(key: Octets, to: Octets) -> PyOperation {
        PyOperation { operation: Operation::move_to(key.0, to.0), meaning: Meaning::Done }
    }

    #[staticmethod]
    fn check_absent(key: Octets) -> PyOperation {
        check(key, Condition::Absent)
    }

    #[staticmethod]
    fn check_present(key: Octets) -> PyOperation {
        check(key, Condition::Present)
    }

    #[staticmethod]
    fn check_equals(key: Octets, expected: Octets) -> PyOperation {
        check(key, Condition::Equals(&expected.0))
    }

    fn __repr__(&self) -> String {
        format!("<coppice.Operation {} {:?}>", self.operation.op().name(), Value::from(self.operation.key()))
    }
}
