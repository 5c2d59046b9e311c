//! Where a backup lies: the files of a directory, or the objects below a prefix of a bucket. An address tells which; it
//! is a path, and one that begins with `s3://` names a bucket and a prefix.
//!
//! Files and objects are written whole, in order, and never change. The manifest is the last of them: what lists its
//! names and finds no manifest has found a backup that was interrupted.

use std::fmt::Debug;
use std::io::{self, Read, Seek, Write};
use std::path::{Path, PathBuf};

use crate::error::Result;

mod files;
#[cfg(feature = "s3")]
mod http;
#[cfg(feature = "s3")]
mod objects;

/// What an address of an object store begins with.
const S3: &str = "s3://";

/// Files of a backup, each with a name. What is written goes into the one that was created last. Calls block.
pub(crate) trait Storage: Debug + Send + Write {
    /// Its address: errors name it, joined with the name of a file.
    fn address(&self) -> &Path;

    /// A file that has reached this size is followed by the next one.
    fn file_bytes_max(&self) -> u64;

    /// Names and sizes of what is there.
    fn list(&self) -> Result<Vec<(String, u64)>>;

    /// Opens a file at its beginning; none: it is not there.
    fn open(&self, name: &str) -> Result<Option<Box<dyn Source>>>;

    /// Takes it for this process, as far as it can be taken.
    fn lock(&mut self) -> Result<()>;

    /// Ends a file that an interrupted backup has left, behind so many bytes, and makes them durable.
    fn cut(&self, name: &str, bytes: u64) -> Result<()>;

    /// Begins a file that was not there.
    fn create(&mut self, name: &str) -> Result<()>;

    /// Ends the file that was created last, and makes all of them durable.
    fn sync(&mut self) -> Result<()>;

    /// Writes the file that makes all others a backup: it appears whole, and behind them. Gives up what was taken.
    fn commit(&mut self, name: &str, write: &mut dyn FnMut(&mut dyn Write) -> io::Result<()>) -> Result<()>;
}

/// A file that is read.
pub(crate) trait Source: Debug + Send + Read + Seek {}

impl<T: Debug + Send + Read + Seek> Source for T {}

/// The storage at an address.
pub(crate) fn at(address: &Path) -> Result<Box<dyn Storage>> {
    match in_object_store(address) {
        #[cfg(feature = "s3")]
        true => Ok(Box::new(objects::Objects::at(address)?)),
        #[cfg(not(feature = "s3"))]
        true => {
            Err(crate::error::store(address, crate::error::StoreReason::NotBuilt, "this program is built without s3"))
        }
        false => Ok(Box::new(files::Directory::at(address))),
    }
}

/// Calls what blocks, in a thread of its own.
pub(crate) async fn blocking<T: Send + 'static>(call: impl FnOnce() -> T + Send + 'static) -> T {
    match tokio::task::spawn_blocking(call).await {
        Ok(outcome) => outcome,
        Err(ended) => std::panic::resume_unwind(ended.into_panic()),
    }
}

/// Whether an address names a bucket.
pub fn in_object_store(address: &Path) -> bool {
    address.as_os_str().as_encoded_bytes().starts_with(S3.as_bytes())
}

/// Reads the address `s3://BUCKET/PREFIX` as people type it; what is wrong with it.
///
/// # Errors
/// It names no bucket or no prefix.
pub fn object_store_address(text: &str) -> std::result::Result<PathBuf, String> {
    let form = || format!("a backup in an object store is s3://BUCKET/PREFIX, not {text}");
    let (bucket, prefix) = text.strip_prefix(S3).and_then(|rest| rest.split_once('/')).ok_or_else(form)?;
    let prefix = prefix.trim_end_matches('/');
    let plain = |part: &str| !part.is_empty() && part != "." && part != ".." && !part.chars().any(char::is_control);
    let known = |byte: u8| byte.is_ascii_alphanumeric() || b"._-".contains(&byte);
    if bucket.is_empty() || !bucket.bytes().all(known) || !prefix.split('/').all(plain) {
        return Err(form());
    }
    Ok(PathBuf::from(format!("{S3}{bucket}/{prefix}")))
}

/// The address that a backup at `address` calls `other`.
pub fn beside(address: &Path, other: &str) -> PathBuf {
    match (address.parent(), other.strip_prefix("../")) {
        _ if other.starts_with(S3) => PathBuf::from(other),
        (Some(parent), Some(name)) if in_object_store(address) => parent.join(name),
        _ => address.join(other),
    }
}

/// How `to` is found from `from`: relative if they lie side by side, so that both can be moved together.
pub(crate) fn path_from(from: &Path, to: &Path) -> Result<String> {
    let (from, to) = (files::canonical(from)?, files::canonical(to)?);
    Ok(match (to.parent() == from.parent(), to.file_name()) {
        (true, Some(name)) => format!("../{}", name.to_string_lossy()),
        _ => to.to_string_lossy().into_owned(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_address_of_an_object_store_has_a_bucket_and_a_prefix() {
        assert_eq!(object_store_address("s3://b/x/monday/"), Ok(PathBuf::from("s3://b/x/monday")));
        for wrong in ["s3://", "s3://b", "s3://b/", "s3:///x", "s3://b//x", "s3://b/../x", "s3://b/x\n", "s3://b?/x"] {
            assert!(object_store_address(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn backups_side_by_side_name_each_other_relatively() {
        let (monday, tuesday) = (Path::new("s3://b/x/monday"), Path::new("s3://b/x/tuesday"));
        let name = path_from(tuesday, monday).expect("nothing is read");
        assert_eq!((name.as_str(), beside(tuesday, &name).as_path()), ("../monday", monday));
        let other = path_from(tuesday, Path::new("s3://other/monday")).expect("nothing is read");
        assert_eq!(
            (other.as_str(), beside(tuesday, &other)),
            ("s3://other/monday", PathBuf::from("s3://other/monday"))
        );
        assert_eq!(beside(Path::new("/b/tuesday"), "../monday"), Path::new("/b/tuesday/../monday"));
        assert_eq!(beside(tuesday, "/b/monday"), Path::new("/b/monday"));
    }
}
