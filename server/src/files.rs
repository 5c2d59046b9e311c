//! Files that change durably and all at once.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

/// Gives the file `name` in `dir` new content, durably and all at once.
pub(crate) fn replace(dir: &Path, name: &str, content: &[u8]) -> io::Result<()> {
    let temporary = dir.join(format!("{name}.tmp"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&temporary)?;
    failpoint!(io "file.before_write")?;
    file.write_all(content)?;
    failpoint!(io "file.before_flush")?;
    file.sync_all()?;
    failpoint!(io "file.before_rename")?;
    fs::rename(&temporary, dir.join(name))?;
    failpoint!(io "file.before_flush_dir")?;
    flush_dir(dir)
}

/// Makes the names in `dir` durable (hazards.md ST3).
pub(crate) fn flush_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}
