//! The objects below a prefix of a bucket, in S3 or what speaks its protocol.
//!
//! An object is uploaded whole under a name that was not there: it appears or does not, and is never written over.
//! Therefore nothing is locked: of two programs that write to one prefix, the second to upload a name ends.

use std::collections::VecDeque;
use std::env;
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::mem;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, sync_channel};
use std::sync::{Arc, OnceLock};
use std::time::{Duration, Instant};

use bytes::Bytes;
use object_store::aws::{AmazonS3, AmazonS3Builder};
use object_store::client::HttpErrorKind;
use object_store::path::Path as Key;
use object_store::{BackoffConfig, ObjectStoreExt, RetryConfig};
use object_store::{Error as S3Error, GetOptions, GetRange, MultipartUpload, ObjectStore, PutMode, PutOptions};
use tokio::runtime::Runtime;

use super::http::{Http, network_error};
use super::{S3, Source, Storage};
use crate::error::{Error, Refusal, Result, StoreReason, store};

/// What an interrupted backup must send again is at most the objects under way.
const OBJECT_BYTES: u64 = 16 << 20;
/// Uploads under way, beside the object that is filled: together they bound the memory.
const UPLOADS_MAX: usize = 3;
/// A larger object is uploaded in parts of this size: the manifest of a backup of some tens of gigabytes.
const PART_BYTES: usize = 32 << 20;
/// Objects are read in ranges of this size.
const READ_BYTES: u64 = 4 << 20;
/// A request that failed in passing is repeated so often, for so long, with pauses that double up to the last one.
const RETRIES_MAX: usize = 10;
const RETRY_TIMEOUT: Duration = Duration::from_secs(90);
const PAUSE_MAX: Duration = Duration::from_secs(10);
/// An upload whose answer is lost is repeated so often, for so long, behind pauses that double.
const UNANSWERED_MAX: u32 = 6;
const UNANSWERED_TIMEOUT: Duration = Duration::from_secs(300);
const PAUSE: Duration = Duration::from_millis(200);
/// What is read of the environment.
const VARIABLES: [&str; 6] = [
    "AWS_ACCESS_KEY_ID",
    "AWS_SECRET_ACCESS_KEY",
    "AWS_SESSION_TOKEN",
    "AWS_REGION",
    "AWS_DEFAULT_REGION",
    "AWS_ENDPOINT_URL",
];
/// Characters of a store's own words in an error.
const WORDS_MAX: usize = 300;

/// A prefix of a bucket. See [`Storage`].
#[derive(Debug)]
pub(super) struct Objects {
    at: Place,
    open: Option<Upload>,
    under_way: VecDeque<Receiver<Result<()>>>,
}

/// A bucket and a prefix.
#[derive(Clone, Debug)]
struct Place {
    address: PathBuf,
    store: Arc<AmazonS3>,
    prefix: Key,
}

#[derive(Debug)]
struct Upload {
    name: String,
    /// What is not sent.
    bytes: Vec<u8>,
    parts: Option<Box<dyn MultipartUpload>>,
}

impl Objects {
    /// With the credentials and the endpoint of the environment; asks nobody.
    pub(super) fn at(address: &Path) -> Result<Objects> {
        Objects::with(address, |name| env::var(name).ok().filter(|value| !value.is_empty()))
    }

    fn with(address: &Path, set: impl Fn(&str) -> Option<String>) -> Result<Objects> {
        let fail = |reason, what: &str| Err(store(address, reason, what));
        let text = address.to_string_lossy();
        let parts = text.strip_prefix(S3).and_then(|rest| rest.split_once('/'));
        let Some((bucket, Ok(prefix))) = parts.map(|(bucket, prefix)| (bucket, Key::parse(prefix))) else {
            return fail(StoreReason::Address, "a backup in an object store is s3://BUCKET/PREFIX");
        };
        let (Some(id), Some(secret)) = (set("AWS_ACCESS_KEY_ID"), set("AWS_SECRET_ACCESS_KEY")) else {
            return fail(StoreReason::NoCredentials, "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set");
        };
        // They become part of headers.
        let odd = |name: &&str| set(name).is_some_and(|value| !value.bytes().all(|byte| byte.is_ascii_graphic()));
        if let Some(name) = VARIABLES.into_iter().find(odd) {
            return fail(StoreReason::BadCredentials, &format!("{name} holds a space or another odd character"));
        }
        let region = set("AWS_REGION").or_else(|| set("AWS_DEFAULT_REGION")).unwrap_or_else(|| "us-east-1".to_owned());
        let backoff = BackoffConfig { max_backoff: PAUSE_MAX, ..BackoffConfig::default() };
        let retry = RetryConfig { backoff, max_retries: RETRIES_MAX, retry_timeout: RETRY_TIMEOUT };
        let mut builder = AmazonS3Builder::new()
            .with_bucket_name(bucket)
            .with_access_key_id(id)
            .with_secret_access_key(secret)
            .with_region(region)
            .with_retry(retry);
        if let Some(token) = set("AWS_SESSION_TOKEN") {
            builder = builder.with_token(token);
        }
        let endpoint = set("AWS_ENDPOINT_URL");
        let plain = endpoint.as_ref().is_some_and(|url| url.starts_with("http://"));
        if let Some(url) = endpoint {
            if !(plain || url.starts_with("https://")) || url.contains('@') {
                return fail(StoreReason::Address, "AWS_ENDPOINT_URL is no http://HOST:PORT and no https://HOST:PORT");
            }
            builder = builder.with_endpoint(url).with_allow_http(plain);
        }
        let http = Http::new(plain).map_err(|error| store(address, StoreReason::Untrusted, error.to_string()))?;
        let built = builder.with_http_connector(http).build().map_err(|error| failed(address, &error))?;
        let at = Place { address: address.to_owned(), store: Arc::new(built), prefix };
        Ok(Objects { at, open: None, under_way: VecDeque::new() })
    }

    /// Sends what is filled as a part of the object.
    fn send_part(&mut self) -> Result<()> {
        let Some(mut upload) = self.open.take() else { return Ok(()) };
        let (at, path) = (self.at.clone(), self.at.address.join(&upload.name));
        let sent = wait(async move {
            let mut parts = match upload.parts.take() {
                Some(parts) => parts,
                None => at.store.put_multipart(&at.key(&upload.name)).await?,
            };
            let sent = parts.put_part(mem::take(&mut upload.bytes).into()).await;
            if sent.is_err() {
                // What was sent would be stored, and paid for, without being seen. The first error says more.
                let _ = parts.abort().await;
            }
            sent.map(|()| Upload { parts: Some(parts), ..upload })
        });
        self.open = Some(sent.map_err(|error| failed(&path, &error))?);
        Ok(())
    }

    /// Begins to send the rest of the object, and waits until few are under way.
    fn send(&mut self, under_way_max: usize) -> Result<()> {
        if self.open.as_ref().is_some_and(|upload| upload.parts.is_some() && !upload.bytes.is_empty()) {
            self.send_part()?;
        }
        if let Some(Upload { name, bytes, parts }) = self.open.take() {
            let at = self.at.clone();
            self.under_way.push_back(spawn(async move {
                let Some(mut parts) = parts else { return at.put(&name, bytes.into()).await };
                let completed = parts.complete().await;
                completed.map(drop).map_err(|error| failed(&at.address.join(name), &error))
            }));
        }
        while self.under_way.len() > under_way_max {
            self.under_way.pop_front().map_or(Ok(()), |upload| outcome(&upload))?;
        }
        Ok(())
    }
}

impl Place {
    fn key(&self, name: &str) -> Key {
        self.prefix.clone().join(name)
    }

    /// Uploads an object that is not there. One that is there, with the same bytes, was uploaded by a request whose
    /// answer was lost.
    async fn put(&self, name: &str, bytes: Bytes) -> Result<()> {
        let (path, begun) = (self.address.join(name), Instant::now());
        for unanswered in 1.. {
            let mode = if mutant!(upload_writes_over) { PutMode::Overwrite } else { PutMode::Create };
            let options = PutOptions::from(mode);
            let error = match self.store.put_opts(&self.key(name), bytes.clone().into(), options).await {
                Ok(_) => return Ok(()),
                Err(S3Error::AlreadyExists { .. }) => match self.store.get(&self.key(name)).await {
                    Ok(there) if there.meta.size != bytes.len() as u64 => break,
                    Ok(there) => match there.bytes().await {
                        Ok(there) if there == bytes => return Ok(()),
                        Ok(_) => break,
                        Err(error) => error,
                    },
                    Err(error) => error,
                },
                Err(error) => error,
            };
            let lost = |kind| matches!(kind, HttpErrorKind::Timeout | HttpErrorKind::Interrupted);
            let again = matches!(error, S3Error::NotFound { .. }) && code(&error.to_string()) != Some("NoSuchBucket");
            let again = again || network_error(&error).is_some_and(|(kind, _)| lost(kind));
            if !again || unanswered >= UNANSWERED_MAX || begun.elapsed() > UNANSWERED_TIMEOUT {
                return Err(failed(&path, &error));
            }
            tokio::time::sleep(PAUSE * 2u32.pow(unanswered)).await;
        }
        Err(Refusal::InUse(self.address.clone()).into())
    }

    /// Reads up to [`READ_BYTES`]; with them the size of the object. None: it is not there.
    fn get(&self, name: &str, from: u64) -> Result<Option<(Bytes, u64)>> {
        let (at, key) = (self.clone(), self.key(name));
        let got: object_store::Result<_> = wait(async move {
            let range = Some(GetRange::Bounded(from..from + READ_BYTES));
            let got = at.store.get_opts(&key, GetOptions { range, ..GetOptions::default() }).await?;
            let size = got.meta.size;
            Ok((got.bytes().await?, size))
        });
        match got {
            Ok(got) => Ok(Some(got)),
            Err(error) => match (&error, code(&error.to_string())) {
                (S3Error::NotFound { .. }, None | Some("NoSuchKey")) => Ok(None),
                (_, Some("InvalidRange")) => Ok(Some((Bytes::new(), 0))),
                _ => Err(failed(&self.address.join(name), &error)),
            },
        }
    }
}

impl Write for Objects {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let Some(upload) = &mut self.open else { return Err(io::ErrorKind::NotFound.into()) };
        upload.bytes.extend_from_slice(bytes);
        if upload.bytes.len() >= PART_BYTES {
            self.send_part().map_err(io::Error::other)?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Storage for Objects {
    fn address(&self) -> &Path {
        &self.at.address
    }

    fn file_bytes_max(&self) -> u64 {
        OBJECT_BYTES
    }

    fn list(&self) -> Result<Vec<(String, u64)>> {
        let at = self.at.clone();
        let listed = wait(async move { at.store.list_with_delimiter(Some(&at.prefix)).await });
        let listed = listed.map_err(|error| failed(&self.at.address, &error))?;
        let objects = listed.objects.into_iter().map(|object| (object.location, object.size));
        let below = listed.common_prefixes.into_iter().map(|prefix| (prefix, 0));
        // An object of the prefix itself is what consoles call a folder.
        let all = objects.chain(below).filter(|(key, _)| *key != self.at.prefix);
        Ok(all.map(|(key, size)| (key.filename().unwrap_or_default().to_owned(), size)).collect())
    }

    fn open(&self, name: &str) -> Result<Option<Box<dyn Source>>> {
        let Some((window, size)) = self.at.get(name, 0)? else { return Ok(None) };
        Ok(Some(Box::new(Object { at: self.at.clone(), name: name.to_owned(), size, next: 0, window, from: 0 })))
    }

    fn lock(&mut self) -> Result<()> {
        Ok(())
    }

    fn cut(&self, _: &str, _: u64) -> Result<()> {
        Ok(())
    }

    fn create(&mut self, name: &str) -> Result<()> {
        self.send(UPLOADS_MAX - 1)?;
        // With the chunk that makes it full.
        let bytes = Vec::with_capacity(OBJECT_BYTES as usize * 5 / 4);
        self.open = Some(Upload { name: name.to_owned(), bytes, parts: None });
        Ok(())
    }

    fn sync(&mut self) -> Result<()> {
        self.send(0)
    }

    fn commit(&mut self, name: &str, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()> {
        self.sync()?;
        self.create(name)?;
        write(self).map_err(crate::error::at(&self.at.address.join(name)))?;
        self.sync()
    }
}

/// An object that is read.
#[derive(Debug)]
struct Object {
    at: Place,
    name: String,
    size: u64,
    /// Where it is read next.
    next: u64,
    /// What was fetched, and where it lies.
    window: Bytes,
    from: u64,
}

impl Read for Object {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.next >= self.size {
            return Ok(0);
        }
        if !(self.from..self.from + self.window.len() as u64).contains(&self.next) {
            let got = self.at.get(&self.name, self.next).map_err(io::Error::other)?;
            (self.window, _) = got.ok_or(io::ErrorKind::NotFound)?;
            self.from = self.next;
        }
        let mut rest = &self.window[(self.next - self.from) as usize..];
        let count = rest.read(buffer)?;
        self.next += count as u64;
        Ok(count)
    }
}

impl Seek for Object {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::End(by) => (self.size, by),
            SeekFrom::Current(by) => (self.next, by),
        };
        self.next = from.checked_add_signed(by).ok_or(io::ErrorKind::InvalidInput)?;
        Ok(self.next)
    }
}

/// Requests run here, so that callers may block wherever they are.
fn spawn<T: Send + 'static>(request: impl Future<Output = T> + Send + 'static) -> Receiver<T> {
    static RUNTIME: OnceLock<Runtime> = OnceLock::new();
    let build = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let (sender, receiver) = sync_channel(1);
    let request = async move {
        // Nobody waits: what was asked for has failed elsewhere.
        let _ = sender.send(request.await);
    };
    RUNTIME.get_or_init(|| build().expect("the system starts one thread more")).spawn(request);
    receiver
}

fn outcome<T>(receiver: &Receiver<T>) -> T {
    receiver.recv().expect("a request does not panic")
}

fn wait<T: Send + 'static>(request: impl Future<Output = T> + Send + 'static) -> T {
    outcome(&spawn(request))
}

/// What lies between a tag and its end in an answer of the store.
fn tagged<'a>(text: &'a str, tag: &str) -> Option<&'a str> {
    let (_, behind) = text.split_once(&format!("<{tag}>"))?;
    behind.split_once("</").map(|(inside, _)| inside)
}

fn code(text: &str) -> Option<&str> {
    tagged(text, "Code")
}

/// What the store or the network said, in words of ours. Of an answer only code and message: the rest repeats what
/// was sent, tokens too.
fn failed(path: &Path, error: &S3Error) -> Error {
    use StoreReason::{BadCredentials, Busy, Clock, Denied, NoBucket, Other, Region, Unreachable, Untrusted};
    let text = error.to_string();
    let status = text.split_once("status code: ").map(|(_, rest)| rest.split(':').next().unwrap_or_default());
    let (reason, what) = match (code(&text), network_error(error)) {
        (Some(code), _) => {
            let reason = match code {
                "NoSuchBucket" => NoBucket,
                "InvalidAccessKeyId" | "SignatureDoesNotMatch" | "ExpiredToken" | "InvalidToken" => BadCredentials,
                "RequestTimeTooSkewed" => Clock,
                "AuthorizationHeaderMalformed" | "PermanentRedirect" | "TemporaryRedirect" => Region,
                "AccessDenied" | "AllAccessDisabled" | "AccountProblem" => Denied,
                "SlowDown" | "ServiceUnavailable" | "InternalError" | "RequestTimeout" => Busy,
                _ => Other,
            };
            (reason, tagged(&text, "Message").map_or(code.to_owned(), |message| format!("{code}: {message}")))
        }
        (None, Some((_, words))) => {
            let reason = if words.contains("certificate") { Untrusted } else { Unreachable };
            let endpoint = env::var("AWS_ENDPOINT_URL").unwrap_or_else(|_| "the store".to_owned());
            (reason, format!("{endpoint} cannot be reached: {words}"))
        }
        (None, None) if matches!(error, S3Error::PermissionDenied { .. } | S3Error::Unauthenticated { .. }) => {
            (Denied, status.unwrap_or("denied").to_owned())
        }
        (None, None) if text.contains("redirect") || status.is_some_and(|status| status.starts_with('3')) => {
            (Region, "the store answers with a redirect".to_owned())
        }
        (None, None) => match status {
            Some(status) if status.starts_with('5') => (Busy, status.to_owned()),
            Some(status) => (Other, status.to_owned()),
            None => (Other, text.clone()),
        },
    };
    let words = what.chars().map(|c| if c.is_control() { ' ' } else { c }).take(WORDS_MAX);
    store(path, reason, words.collect::<String>().trim())
}

#[cfg(test)]
mod tests {
    use coppice_testkit::object_store::{BUCKET, ObjectStore};

    use super::*;

    fn objects(store: &ObjectStore) -> Objects {
        let variables = store.variables();
        let set = |name: &str| variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.clone());
        Objects::with(Path::new(&format!("{S3}{BUCKET}/x/monday")), set).expect("an address")
    }

    fn at(error: io::Error) -> Error {
        crate::error::at(Path::new(""))(error)
    }

    fn noise(bytes: usize) -> Vec<u8> {
        (0..bytes).map(|n| ((n * n) >> 7) as u8).collect()
    }

    #[test]
    fn a_large_object_is_sent_in_parts_and_read_in_ranges_by_a_busy_store() {
        let store = ObjectStore::start();
        store.content().busy_every = 3;
        let mut objects = objects(&store);
        let large = noise(2 * PART_BYTES + 17);
        for (name, bytes) in [("small", &large[..9]), ("other", &large[..OBJECT_BYTES as usize]), ("third", &[7])] {
            objects.create(name).and_then(|()| objects.write_all(bytes).map_err(at)).expect("a store that is busy");
        }
        objects
            .commit("manifest", &mut |out| large.chunks(1 << 20).try_for_each(|part| out.write_all(part)))
            .expect("it");
        assert!(store.content().uploads.is_empty());
        // It has pages of two.
        store.content().objects.insert("x/monday/below/y".into(), vec![1]);
        let mut listed = objects.list().expect("a list");
        listed.sort();
        let size = |name: &str, bytes| (name.to_owned(), bytes);
        let sizes =
            [size("below", 0), size("manifest", large.len() as u64), size("other", OBJECT_BYTES), size("small", 9)];
        assert_eq!((&listed[..4], &listed[4..]), (&sizes[..], &[size("third", 1)][..]));
        let mut source = objects.open("manifest").expect("it answers").expect("it is there");
        let mut read = Vec::new();
        source.read_to_end(&mut read).expect("it answers");
        assert!(read == large);
        read.clear();
        source.seek(SeekFrom::Start(PART_BYTES as u64 - 5)).and_then(|_| source.read_to_end(&mut read)).expect("it");
        assert!(read == large[PART_BYTES - 5..]);
        assert!(objects.open("none").expect("it answers").is_none());
    }

    #[test]
    fn an_upload_whose_answer_is_lost_is_no_other_program_and_nothing_is_written_over() {
        let store = ObjectStore::start();
        store.content().lost_every = 3;
        let mut first = objects(&store);
        let large = noise(OBJECT_BYTES as usize + 1);
        for number in 0..5 {
            first.create(&number.to_string()).and_then(|()| first.write_all(&large).map_err(at)).expect("a store");
        }
        first.sync().expect("every answer comes at last");
        let mut second = objects(&store);
        second.create("4").and_then(|()| second.write_all(b"other").map_err(at)).expect("nothing is sent");
        assert!(matches!(second.sync(), Err(Error::Refused(Refusal::InUse(_)))));
        assert!(store.content().objects["x/monday/4"] == large);
    }

    #[cfg(feature = "mutants")]
    #[test]
    fn an_upload_that_writes_over_another_is_caught() {
        let test = "an_upload_whose_answer_is_lost_is_no_other_program_and_nothing_is_written_over";
        planted::assert_caught("upload_writes_over", &format!("storage::objects::tests::{test}"));
    }
}
