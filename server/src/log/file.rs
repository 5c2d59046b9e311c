//! One open file of the log, written past the page cache where the file system can: a vote is on its way to the disk
//! when the write returns, and its flush need not look for it. Three nodes that flush on one disk at once wait less for
//! it, and the processor time of a saturated put falls by a third (`loadgen/rivals/benches/log.rs`,
//! `three times`).

use std::collections::VecDeque;
use std::fs::{File, OpenOptions};
use std::io::{self, IoSlice};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;

use bytes::{Buf, Bytes};

use super::segment::{BOUNDARY_BYTES, boundary};

/// Bytes that go to the disk with one direct write.
const STAGE_BYTES: usize = 1 << 20;

/// Slices that one `pwritev` takes (IOV_MAX on Linux).
const SLICES_MAX: usize = 1_024;

/// What fills the last block of a write.
const ZEROS: [u8; BOUNDARY_BYTES as usize] = [0; BOUNDARY_BYTES as usize];

/// How bytes reach the disk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    /// Past the page cache, in whole blocks of [`BOUNDARY_BYTES`].
    Direct,
    /// Through the page cache.
    Cached,
}

/// An open file and the way that its file system takes.
#[derive(Debug)]
pub(super) struct LogFile {
    file: File,
    way: Way,
}

impl LogFile {
    /// Opens `path` with `options`, for direct writes if `way` says so and the file system takes them.
    pub(super) fn open(path: &Path, options: &OpenOptions, way: Way) -> io::Result<LogFile> {
        #[cfg(target_os = "linux")]
        if way == Way::Direct {
            let flags = rustix::fs::OFlags::DIRECT.bits() as i32;
            match options.clone().custom_flags(flags).open(path) {
                Ok(file) => return Ok(LogFile { file, way }),
                Err(error) if is_refused(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(LogFile { file: options.open(path)?, way: Way::Cached })
    }

    /// Contents and length are durable after this.
    pub(super) fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    /// Writes `parts` one after the other at `offset`, a multiple of [`BOUNDARY_BYTES`], and zeros behind them up to
    /// the next multiple: what an older segment left there must not follow a write.
    pub(super) fn write(&mut self, stage: &mut Stage, offset: u64, parts: &[Bytes]) -> io::Result<()> {
        if self.way == Way::Direct && offset == boundary(offset) {
            match write_blocks(&self.file, stage, offset, parts) {
                // This file system wants other blocks. The same bytes go to the same place through the page cache.
                Err(error) if is_refused(&error) => self.leave_direct()?,
                done => return done,
            }
        }
        let end = offset + parts.iter().map(|part| part.len() as u64).sum::<u64>();
        let zeros = Bytes::from_static(&ZEROS[..(boundary(end) - end) as usize]);
        write_slices(&self.file, offset, parts.iter().chain([&zeros]))
    }

    /// From now on this file is written through the page cache.
    fn leave_direct(&mut self) -> io::Result<()> {
        let flags = rustix::fs::fcntl_getfl(&self.file)?;
        #[cfg(target_os = "linux")]
        let flags = flags - rustix::fs::OFlags::DIRECT;
        rustix::fs::fcntl_setfl(&self.file, flags)?;
        self.way = Way::Cached;
        Ok(())
    }
}

/// Memory that direct writes accept: it starts at a block.
#[derive(Debug, Default)]
pub(super) struct Stage {
    /// One block longer than what is used of it, so that a block begins in it; empty until the first direct write.
    bytes: Vec<u8>,
}

impl Stage {
    /// Copies the first bytes of `parts`, as many as fit, and takes them off. Returns them, filled up to whole blocks
    /// with zeros.
    fn take(&mut self, parts: &mut VecDeque<Bytes>) -> &[u8] {
        let wanted = parts.iter().map(Bytes::len).sum::<usize>().min(STAGE_BYTES);
        let blocks = boundary(wanted as u64) as usize;
        if self.bytes.len() < blocks + BOUNDARY_BYTES as usize {
            self.bytes = vec![0; blocks + BOUNDARY_BYTES as usize];
        }
        let start = self.bytes.as_ptr().align_offset(BOUNDARY_BYTES as usize);
        let stage = &mut self.bytes[start..][..blocks];
        let mut filled = 0;
        while let Some(part) = parts.front_mut().filter(|_| filled < wanted) {
            let bytes = part.len().min(wanted - filled);
            part.copy_to_slice(&mut stage[filled..filled + bytes]);
            filled += bytes;
            if part.is_empty() {
                parts.pop_front();
            }
        }
        stage[filled..].fill(0);
        stage
    }
}

fn write_blocks(file: &File, stage: &mut Stage, mut offset: u64, parts: &[Bytes]) -> io::Result<()> {
    let mut parts: VecDeque<Bytes> = parts.iter().filter(|part| !part.is_empty()).cloned().collect();
    while !parts.is_empty() {
        let mut blocks = stage.take(&mut parts);
        while !blocks.is_empty() {
            match rustix::io::pwrite(file, blocks, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(written) => {
                    offset += written as u64;
                    blocks = &blocks[written..];
                }
                Err(rustix::io::Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
    Ok(())
}

/// Writes `parts` with as few system calls as they allow, without copying them together.
fn write_slices<'a>(file: &File, mut offset: u64, parts: impl Iterator<Item = &'a Bytes>) -> io::Result<()> {
    let mut parts: Vec<Bytes> = parts.filter(|part| !part.is_empty()).cloned().collect();
    let mut first = 0;
    while first < parts.len() {
        let slices: Vec<IoSlice<'_>> = parts[first..].iter().take(SLICES_MAX).map(|part| IoSlice::new(part)).collect();
        let mut written = match rustix::io::pwritev(file, &slices, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(written) => written,
            Err(rustix::io::Errno::INTR) => continue,
            Err(error) => return Err(error.into()),
        };
        offset += written as u64;
        while first < parts.len() && written >= parts[first].len() {
            written -= parts[first].len();
            first += 1;
        }
        if written > 0 {
            parts[first].advance(written);
        }
    }
    Ok(())
}

/// Whether a file system refused direct writes, as it may for their kind or their blocks.
fn is_refused(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported)
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;

    /// Parts of drawn sizes, small ones and some above a stage, behind each other.
    fn parts(seed: u64) -> Vec<Bytes> {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut draw = |bound: u64| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            state % bound
        };
        let sizes = [1, 300, 9_000, 400_000, 2 * STAGE_BYTES as u64];
        let count = 1 + draw(6);
        let part = |_| {
            let bound = sizes[draw(sizes.len() as u64) as usize];
            let size = draw(bound) as usize;
            Bytes::from((0..size).map(|_| draw(255) as u8 + 1).collect::<Vec<u8>>())
        };
        (0..count).map(part).collect()
    }

    /// A file of its own, gone with the test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(name: &str) -> Scratch {
            Scratch(std::env::temp_dir().join(format!("coppice-log-{name}-{}", std::process::id())))
        }

        fn open(&self, way: Way) -> LogFile {
            let options = OpenOptions::new().write(true).create(true).truncate(true).clone();
            LogFile::open(&self.0, &options, way).expect("opens")
        }

        fn read(&self) -> Vec<u8> {
            std::fs::read(&self.0).expect("reads")
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            _ = std::fs::remove_file(&self.0);
        }
    }

    const BLOCK: usize = BOUNDARY_BYTES as usize;

    #[test]
    fn both_ways_write_the_same_bytes() {
        let scratch = Scratch::new("ways");
        for seed in 0..20 {
            let parts = parts(seed);
            let bytes = parts.concat();
            for way in [Way::Direct, Way::Cached] {
                let (mut file, mut stage) = (scratch.open(way), Stage::default());
                file.write(&mut stage, 0, &[Bytes::from(vec![9; bytes.len() + 3 * BLOCK])]).expect("writes");
                file.write(&mut stage, BOUNDARY_BYTES, &parts).expect("writes");
                file.flush().expect("flushes");
                let found = scratch.read();
                let (before, found) = found.split_at(BLOCK);
                assert!(before.iter().all(|&byte| byte == 9), "seed {seed}, {way:?}");
                assert!(found[..bytes.len()] == bytes[..], "seed {seed}, {way:?}");
                let (filled, behind) = found[bytes.len()..].split_at(bytes.len().next_multiple_of(BLOCK) - bytes.len());
                assert!(filled.iter().all(|&byte| byte == 0), "seed {seed}, {way:?}");
                assert!(behind[..BLOCK].iter().all(|&byte| byte == 9), "seed {seed}, {way:?}");
            }
        }
    }

    #[test]
    fn a_file_that_leaves_the_direct_way_goes_on_at_any_offset() {
        let scratch = Scratch::new("leaves");
        let (mut file, mut stage) = (scratch.open(Way::Direct), Stage::default());
        file.write(&mut stage, 0, &[Bytes::from_static(b"direct")]).expect("writes");
        file.leave_direct().expect("leaves");
        assert_eq!(file.way, Way::Cached);
        file.write(&mut stage, 3, &[Bytes::from_static(b"cached")]).expect("writes");
        assert_eq!(scratch.read(), [&b"dircached"[..], &ZEROS[9..]].concat());
    }
}
