//! Carries the log's effects out on a disk, each errand with its failpoints: commits, the opening of a segment at a
//! start, segments prepared ahead, segments that go.

use std::io;

use super::core::FileEffect;
use super::disk::Disk;

/// A write or a flush that votes wait for.
pub(super) fn commit<D: Disk>(disk: &mut D, effect: &FileEffect) -> io::Result<()> {
    match effect {
        FileEffect::Append { .. } => {
            failpoint!(io "log.before_write")?;
            disk.apply(effect)?;
            failpoint!("log.after_write");
        }
        FileEffect::Flush { .. } => {
            failpoint!(io "log.before_flush")?;
            disk.apply(effect)?;
            failpoint!("log.after_flush");
        }
        _ => disk.apply(effect)?,
    }
    Ok(())
}

/// The segment of a start.
pub(super) fn open<D: Disk>(disk: &mut D, effect: &FileEffect) -> io::Result<()> {
    match effect {
        FileEffect::Create { .. } => failpoint!(io "open.before_create")?,
        FileEffect::Append { .. } => failpoint!(io "open.before_write")?,
        FileEffect::Flush { .. } => failpoint!(io "open.before_flush")?,
        FileEffect::Rename { .. } => failpoint!(io "open.before_rename")?,
        FileEffect::FlushDir => failpoint!(io "open.before_flush_dir")?,
        FileEffect::Truncate { .. } => failpoint!(io "open.before_truncate")?,
        FileEffect::Remove { .. } => failpoint!(io "open.before_remove")?,
    }
    disk.apply(effect)?;
    if matches!(effect, FileEffect::FlushDir) {
        failpoint!("open.after_flush_dir");
    }
    Ok(())
}

/// A segment made of zeros.
pub(super) fn make<D: Disk>(disk: &mut D, effect: &FileEffect) -> io::Result<()> {
    match effect {
        FileEffect::Create { .. } => failpoint!(io "segment.before_create")?,
        FileEffect::Flush { .. } => failpoint!(io "segment.before_flush")?,
        FileEffect::FlushDir => failpoint!(io "segment.before_flush_dir")?,
        _ => {}
    }
    disk.apply(effect)?;
    if matches!(effect, FileEffect::FlushDir) {
        failpoint!("segment.after_flush_dir");
    }
    Ok(())
}

/// A segment made of a file that was one before.
pub(super) fn reuse<D: Disk>(disk: &mut D, effect: &FileEffect) -> io::Result<()> {
    match effect {
        FileEffect::Append { .. } => failpoint!(io "reuse.before_clear")?,
        FileEffect::Rename { .. } => failpoint!(io "reuse.before_rename")?,
        _ => {}
    }
    disk.apply(effect)
}

/// Segments that nobody needs.
pub(super) fn trim<D: Disk>(disk: &mut D, effect: &FileEffect) -> io::Result<()> {
    match effect {
        FileEffect::Rename { .. } => failpoint!(io "trim.before_rename")?,
        FileEffect::Remove { .. } => failpoint!(io "trim.before_remove")?,
        FileEffect::FlushDir => failpoint!(io "trim.before_flush_dir")?,
        _ => {}
    }
    disk.apply(effect)?;
    if matches!(effect, FileEffect::FlushDir) {
        failpoint!("trim.after_flush_dir");
    }
    Ok(())
}
