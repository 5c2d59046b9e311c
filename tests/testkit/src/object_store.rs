//! An object store for tests: the part of S3 that backups use, over HTTP, one bucket in memory. It asks for signatures
//! and does not check them: `tests/s3` has a judge that does.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::io::{self, BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};

/// The bucket that is there.
pub const BUCKET: &str = "bucket";
/// An access key that may do everything.
pub const KEY: &str = "AKIATEST";
/// What must never be printed.
pub const SECRET: &str = "the-secret-of-the-test";
/// The same of temporary credentials.
pub const TOKEN: &str = "the-token-of-the-test";
/// Other access keys, and the code that the store answers them with.
pub const REFUSED: [(&str, &str); 3] =
    [("AKIADENIED", "AccessDenied"), ("AKIALATE", "RequestTimeTooSkewed"), ("AKIAWRONG", "SignatureDoesNotMatch")];
/// Names in a page of a list.
const PAGE: usize = 2;

/// What it holds and how it behaves.
#[derive(Debug, Default)]
pub struct Content {
    /// The objects by key.
    pub objects: BTreeMap<String, Vec<u8>>,
    /// Multipart uploads under way: key and parts.
    pub uploads: BTreeMap<String, (String, BTreeMap<u32, Vec<u8>>)>,
    /// Every so many requests one is answered with 503; 0: none.
    pub busy_every: usize,
    /// Every so many puts one is carried out, and its connection closed without an answer; 0: none.
    pub lost_every: usize,
    /// Puts of keys that end so are not answered.
    pub stuck: Option<String>,
    /// Requests and puts so far.
    pub requests: usize,
    puts: usize,
}

/// See the module. It serves until the process ends.
#[derive(Clone, Debug)]
pub struct ObjectStore {
    address: SocketAddr,
    content: Arc<Mutex<Content>>,
}

struct Request {
    method: String,
    key: String,
    query: BTreeMap<String, String>,
    headers: BTreeMap<String, String>,
    body: Vec<u8>,
}

struct Answer(u16, Vec<(&'static str, String)>, Vec<u8>);

impl ObjectStore {
    /// Starts it at a port of this machine.
    ///
    /// # Panics
    /// The machine has no port.
    pub fn start() -> ObjectStore {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        let store = ObjectStore { address, content: Arc::default() };
        let served = store.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let store = served.clone();
                // A client that goes away is no failure.
                std::thread::spawn(move || store.serve(&stream));
            }
        });
        store
    }

    /// What it holds and how it behaves; while it is held nothing is answered.
    ///
    /// # Panics
    /// A thread that held it has panicked.
    pub fn content(&self) -> MutexGuard<'_, Content> {
        self.content.lock().expect("no thread that holds it panics")
    }

    /// The variables of a program that uses it.
    pub fn variables(&self) -> [(&'static str, String); 5] {
        [
            ("AWS_ACCESS_KEY_ID", KEY.to_owned()),
            ("AWS_SECRET_ACCESS_KEY", SECRET.to_owned()),
            ("AWS_SESSION_TOKEN", TOKEN.to_owned()),
            ("AWS_ENDPOINT_URL", format!("http://{}", self.address)),
            ("AWS_REGION", "eu-test-1".to_owned()),
        ]
    }

    fn serve(&self, stream: &TcpStream) -> Option<()> {
        let mut input = BufReader::new(stream);
        loop {
            let request = read(&mut input)?;
            let Answer(status, headers, body) = self.answer(&request)?;
            let mut head = format!("HTTP/1.1 {status} so\r\ncontent-length: {}\r\n", body.len());
            headers.iter().for_each(|(name, value)| head += &format!("{name}: {value}\r\n"));
            let mut out = stream;
            out.write_all(format!("{head}\r\n").as_bytes()).and_then(|()| out.write_all(&body)).ok()?;
        }
    }

    /// None: the connection is closed.
    fn answer(&self, request: &Request) -> Option<Answer> {
        let mut content = self.content();
        content.requests += 1;
        if content.busy_every > 0 && content.requests.is_multiple_of(content.busy_every) {
            return Some(error(503, "SlowDown"));
        }
        let header = |name: &str| request.headers.get(name).map_or("", String::as_str);
        let signed = header("authorization").strip_prefix("AWS4-HMAC-SHA256 Credential=").unwrap_or_default();
        let has = |part: &str| signed.contains(part);
        let whole =
            has("/eu-test-1/s3/aws4_request") && has("SignedHeaders=host;") && has("x-amz-date") && has("Signature=");
        let sums = header("x-amz-content-sha256").len() == 64 && header("x-amz-date").len() == 16;
        if !whole || !sums || header("x-amz-security-token") != TOKEN {
            return Some(error(403, "MissingSecurityHeader"));
        }
        let id = signed.split('/').next().unwrap_or_default();
        if let Some((_, code)) = REFUSED.iter().find(|(refused, _)| *refused == id) {
            return Some(error(403, code));
        }
        let (bucket, key) = request.key.split_once('/').unwrap_or((&request.key, ""));
        if bucket != BUCKET {
            return Some(error(404, "NoSuchBucket"));
        }
        let put = request.method == "PUT";
        if put {
            content.puts += 1;
            if content.stuck.as_ref().is_some_and(|end| key.ends_with(&end[..])) {
                drop(content);
                std::thread::sleep(std::time::Duration::from_secs(600));
                return None;
            }
        }
        let lost = put && content.lost_every > 0 && content.puts.is_multiple_of(content.lost_every);
        let answer = content.carry_out(request, key);
        (!lost).then_some(answer)
    }
}

impl Content {
    fn carry_out(&mut self, request: &Request, key: &str) -> Answer {
        let query = |name: &str| request.query.get(name).map(String::as_str);
        let tag = |bytes: &[u8]| vec![("etag", format!("\"{}\"", bytes.len()))];
        match (&request.method[..], query("uploadId")) {
            ("GET", _) if key.is_empty() && query("list-type") == Some("2") => self.list(request),
            ("GET" | "HEAD", _) => match self.objects.get(key) {
                Some(object) => part_of(object, request, tag(object)),
                None => error(404, "NoSuchKey"),
            },
            ("PUT", Some(id)) => {
                let number = query("partNumber").and_then(|number| number.parse().ok());
                match (self.uploads.get_mut(id), number) {
                    (Some((_, parts)), Some(number)) => {
                        parts.insert(number, request.body.clone());
                        Answer(200, tag(&request.body), Vec::new())
                    }
                    _ => error(404, "NoSuchUpload"),
                }
            }
            ("PUT", None) => {
                if request.headers.get("if-none-match").is_some_and(|to| to == "*") && self.objects.contains_key(key) {
                    return error(412, "PreconditionFailed");
                }
                self.objects.insert(key.to_owned(), request.body.clone());
                Answer(200, tag(&request.body), Vec::new())
            }
            ("POST", None) if query("uploads").is_some() => {
                let id = format!("upload-{}", self.requests);
                let text =
                    format!("<InitiateMultipartUploadResult><UploadId>{id}</UploadId></InitiateMultipartUploadResult>");
                self.uploads.insert(id, (key.to_owned(), BTreeMap::new()));
                Answer(200, Vec::new(), text.into())
            }
            ("POST", Some(id)) => {
                let Some((key, parts)) = self.uploads.remove(id) else { return error(404, "NoSuchUpload") };
                self.objects.insert(key, parts.into_values().collect::<Vec<_>>().concat());
                let text = "<CompleteMultipartUploadResult><ETag>\"whole\"</ETag></CompleteMultipartUploadResult>";
                Answer(200, Vec::new(), text.into())
            }
            ("DELETE", id) => {
                id.map_or_else(|| drop(self.objects.remove(key)), |id| drop(self.uploads.remove(id)));
                Answer(204, Vec::new(), Vec::new())
            }
            _ => error(405, "MethodNotAllowed"),
        }
    }

    /// A page of names below a prefix; those with a further `/` are one prefix.
    fn list(&self, request: &Request) -> Answer {
        let query = |name: &str| request.query.get(name).map_or("", String::as_str);
        let (prefix, after) = (query("prefix"), query("continuation-token"));
        let mut names = BTreeSet::new();
        for key in self.objects.keys() {
            if let Some(rest) = key.strip_prefix(prefix) {
                names.insert(rest.split_once('/').map_or_else(|| key.clone(), |(name, _)| format!("{prefix}{name}/")));
            }
        }
        let mut rest = names.into_iter().filter(|name| &name[..] > after);
        let page: Vec<String> = rest.by_ref().take(PAGE).collect();
        let mut text = format!("<ListBucketResult><IsTruncated>{}</IsTruncated>", rest.next().is_some());
        page.last().map_or(Ok(()), |last| write!(text, "<NextContinuationToken>{last}</NextContinuationToken>")).ok();
        for name in &page {
            let (size, time) = (self.objects.get(name).map_or(0, Vec::len), "2026-01-01T00:00:00.000Z");
            text += &match name.ends_with('/') {
                true => format!("<CommonPrefixes><Prefix>{name}</Prefix></CommonPrefixes>"),
                false => format!(
                    "<Contents><Key>{name}</Key><LastModified>{time}</LastModified><ETag>\"1\"</ETag>\
                     <Size>{size}</Size></Contents>"
                ),
            };
        }
        Answer(200, Vec::new(), format!("{text}</ListBucketResult>").into())
    }
}

fn part_of(object: &[u8], request: &Request, mut headers: Vec<(&'static str, String)>) -> Answer {
    headers.push(("last-modified", "Thu, 01 Jan 2026 00:00:00 GMT".to_owned()));
    let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.split_once('-'));
    let Some((from, to)) = range.map(|(from, to)| (from.parse(), to.parse::<usize>())) else {
        return Answer(200, headers, object.to_vec());
    };
    let from: usize = from.unwrap_or(usize::MAX);
    if from >= object.len() {
        return error(416, "InvalidRange");
    }
    let to = to.map_or(object.len(), |last| (last + 1).min(object.len()));
    headers.push(("content-range", format!("bytes {from}-{}/{}", to - 1, object.len())));
    Answer(206, headers, object[from..to].to_vec())
}

/// An error as S3 says it, with what must not be printed.
fn error(status: u16, code: &str) -> Answer {
    let secrets = format!("<StringToSign>{SECRET}</StringToSign><CanonicalRequest>{TOKEN}</CanonicalRequest>");
    let text = format!("<Error><Code>{code}</Code><Message>in the words of the store</Message>{secrets}</Error>");
    Answer(status, Vec::new(), text.into())
}

fn read(input: &mut impl BufRead) -> Option<Request> {
    let line = |input: &mut dyn BufRead| -> io::Result<String> {
        let mut line = String::new();
        input.read_line(&mut line).map(|_| line.trim_end().to_owned())
    };
    let first = line(input).ok()?;
    let mut words = first.split(' ');
    let (method, target) = (words.next()?.to_owned(), words.next()?);
    let (path, query) = target.split_once('?').unwrap_or((target, ""));
    let pairs = query.split('&').map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    let query = pairs.map(|(name, value)| (name.to_owned(), decoded(value))).collect();
    let mut headers = BTreeMap::new();
    while let Some((name, value)) = line(input).ok()?.split_once(':') {
        headers.insert(name.to_lowercase(), value.trim().to_owned());
    }
    let length = headers.get("content-length").map_or(Some(0), |length| length.parse().ok())?;
    let mut body = vec![0; length];
    input.read_exact(&mut body).ok()?;
    Some(Request { method, key: decoded(path.trim_matches('/')), query, headers, body })
}

/// Without `%2F` and the like.
fn decoded(text: &str) -> String {
    let mut parts = text.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (hex, rest) = part.split_at(part.len().min(2));
        bytes.extend(u8::from_str_radix(hex, 16).ok());
        bytes.extend(rest.as_bytes());
    }
    String::from_utf8_lossy(&bytes).into_owned()
}
