//! Power loss on a real file system, for root: each node's data lies on an ext4 of its own in a file. The file system
//! is shut down as a power cut would leave it: what was not flushed is gone, entries of directories that were not
//! flushed too, and what was flushed stays (hazards.md 5).

use std::io;
use std::path::PathBuf;

use super::tools::tool;

/// Bytes of each node's file system; the file is sparse.
const IMAGE_BYTES: u64 = 2 << 30;

/// Shuts the file system down at once, without writing its journal: `EXT4_IOC_SHUTDOWN` with
/// `EXT4_GOING_FLAGS_NOLOGFLUSH`. Rust without `unsafe` has no ioctl; perl is everywhere.
const SHUT_DOWN: &str =
    r#"my $flags = pack("L", 2); open(my $f, "<", $ARGV[0]) or die "$!"; ioctl($f, 0x8004587d, $flags) or die "$!""#;

/// Where nodes keep their data.
#[derive(Debug)]
pub struct Disks {
    /// One mount per node; empty: plain directories.
    mounts: Vec<Mount>,
    /// The images outlive this, for whoever looks into what went wrong.
    kept: bool,
}

#[derive(Debug)]
struct Mount {
    image: PathBuf,
    at: PathBuf,
}

impl Disks {
    /// Plain directories.
    pub fn plain() -> Disks {
        Disks { mounts: Vec::new(), kept: false }
    }

    /// A file system at each of these directories, which are created; their images lie beside them.
    ///
    /// # Errors
    /// A tool is missing or refuses.
    pub fn loops(directories: &[PathBuf]) -> io::Result<Disks> {
        let mut disks = Disks { mounts: Vec::new(), kept: false };
        for at in directories {
            let image = at.with_extension("ext4");
            std::fs::File::create(&image)?.set_len(IMAGE_BYTES)?;
            std::fs::create_dir_all(at)?;
            tool("mkfs.ext4", &["-q", "-F", "-E", "lazy_itable_init=1,lazy_journal_init=1"], &[&image])?;
            let mount = Mount { image, at: at.clone() };
            mount.mount()?;
            disks.mounts.push(mount);
        }
        Ok(disks)
    }

    /// Whether a node's disk can lose its power.
    pub fn can_fail(&self) -> bool {
        !self.mounts.is_empty()
    }

    /// Leaves the images behind.
    pub fn keep(&mut self) {
        self.kept = true;
    }

    /// The power of a node's disk goes.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn shut_down(&self, node: usize) -> io::Result<()> {
        tool("perl", &["-e", SHUT_DOWN], &[&self.mounts[node].at])
    }

    /// The power of a node's disk comes back. Its node must be down.
    ///
    /// # Errors
    /// The file system cannot be mounted.
    pub fn mount_again(&self, node: usize) -> io::Result<()> {
        let mount = &self.mounts[node];
        tool("umount", &[], &[&mount.at])?;
        mount.mount()
    }
}

impl Drop for Disks {
    fn drop(&mut self) {
        for mount in &self.mounts {
            // The loop device goes with its last mount.
            let _ = tool("umount", &[], &[&mount.at]);
            if !self.kept {
                let _ = std::fs::remove_file(&mount.image);
            }
        }
    }
}

impl Mount {
    fn mount(&self) -> io::Result<()> {
        tool("mount", &["-o", "loop"], &[&self.image, &self.at])
    }
}
