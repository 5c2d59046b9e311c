//! `status --local`: whether the node on this machine is alive. It asks the admin port and never looks at the cluster,
//! so a lost quorum restarts no container.

use std::io::{self, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::time::Duration;

use serde_json::json;

use super::args::{Format, Global};
use super::failure::{Exit, Failure};
use super::output::Output;
use crate::config::{Address, NodeConfig, Sources};

/// More than any health answer; a stranger at the port cannot fill the memory.
const ANSWER_BYTES_MAX: u64 = 64 << 10;

/// Asks `/livez` of the node that this machine's settings describe.
///
/// # Errors
/// That of stdout; a failure is returned with its four lines.
pub fn run(global: &Global, output: &mut Output<'_>) -> io::Result<Result<Exit, Failure>> {
    let config = match super::config_verb::node_config("status", &Sources::of_process()) {
        Ok(loaded) => loaded.config,
        Err(failure) => return Ok(Err(failure)),
    };
    let Some(address) = admin_address(&config) else { return Ok(Err(no_endpoint())) };
    match ask(&address, global.timeout) {
        Ok((200, _)) => {
            match output.style.admin() {
                Format::Json | Format::Jsonl => {
                    writeln!(output.data, "{}", json!({ "v": 1, "alive": true, "admin": address.to_string() }))?;
                }
                Format::Table | Format::Raw => writeln!(output.data, "alive: {address}")?,
            }
            Ok(Ok(Exit::Done))
        }
        Ok((code, body)) => Ok(Err(not_alive(&address, code, &body))),
        Err(error) => Ok(Err(unreachable(&address, &error))),
    }
}

/// What the running node wrote down (its ports may have been any), else what is configured.
fn admin_address(config: &NodeConfig) -> Option<Address> {
    written_address(&config.data_dir).or_else(|| config.listen.admin.clone())
}

fn written_address(data_dir: &Path) -> Option<Address> {
    let text = std::fs::read_to_string(data_dir.join("endpoints.json")).ok()?;
    let endpoints: serde_json::Value = serde_json::from_str(&text).ok()?;
    endpoints["admin"].as_str()?.parse().ok()
}

/// Status code and body of `GET /livez`.
fn ask(address: &Address, timeout: Duration) -> io::Result<(u16, String)> {
    let resolved: SocketAddr = address.resolve()?;
    let mut stream = TcpStream::connect_timeout(&resolved, timeout)?;
    stream.set_read_timeout(Some(timeout))?;
    stream.set_write_timeout(Some(timeout))?;
    write!(stream, "GET /livez HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")?;
    let mut answer = Vec::new();
    stream.take(ANSWER_BYTES_MAX).read_to_end(&mut answer)?;
    let text = String::from_utf8_lossy(&answer);
    let code =
        text.strip_prefix("HTTP/1.1 ").and_then(|rest| rest.split(' ').next()).and_then(|code| code.parse().ok());
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.trim().to_owned()).unwrap_or_default();
    code.map(|code| (code, body)).ok_or_else(|| io::Error::new(io::ErrorKind::InvalidData, "the answer is not HTTP"))
}

fn no_endpoint() -> Failure {
    Failure {
        exit: Exit::Usage,
        code: "config",
        what: "status: the node of this machine has no admin port".to_owned(),
        place: "`listen.admin`".to_owned(),
        cause: "it is set to `off`".to_owned(),
        next: "coppice status".to_owned(),
    }
}

fn not_alive(address: &Address, code: u16, body: &str) -> Failure {
    Failure {
        exit: Exit::Failed,
        code: "not_alive",
        what: format!("status: the node says that it is not alive ({code}): {body}"),
        place: address.to_string(),
        cause: "a thread of the node stands still".to_owned(),
        next: "coppice status".to_owned(),
    }
}

fn unreachable(address: &Address, error: &io::Error) -> Failure {
    Failure {
        exit: Exit::Unavailable,
        code: "unreachable",
        what: format!("status: the node of this machine does not answer: {error}"),
        place: address.to_string(),
        cause: "it does not run, or its admin port is another one".to_owned(),
        next: "coppice config show --origin".to_owned(),
    }
}
