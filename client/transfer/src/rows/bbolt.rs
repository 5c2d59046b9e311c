//! Files of bbolt, the store under etcd: read only, one bucket at the top level, in key order.
//!
//! A file is pages; two of them name the root of the newest tree. A page is `u64 id, u16 flags, u16 count, u32
//! overflow`, then elements that point to keys and values behind them. All integers are little-endian.

use std::fs::File;
use std::os::unix::fs::FileExt;

use super::RowError;

const MAGIC: u32 = 0xed0c_daed;
const VERSION: u32 = 2;
const HEADER_BYTES: usize = 16;
const ELEMENT_BYTES: usize = 16;
const FLAG_BRANCH: u16 = 1;
const FLAG_LEAF: u16 = 2;
/// A leaf element that is a bucket.
const ELEMENT_BUCKET: u32 = 1;
/// Page sizes at which a second page of the root may be, if the first is damaged.
const PAGE_SIZES: [u64; 7] = [4096, 8192, 16_384, 32_768, 65_536, 1024, 2048];

/// An open file.
#[derive(Debug)]
pub struct Bolt {
    file: File,
    size: u64,
    page_size: u64,
    root: u64,
}

/// A page, or a bucket that lies inside of one.
struct Page {
    offset: u64,
    bytes: Vec<u8>,
}

fn word<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at.checked_add(N)?)?.try_into().ok()
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    word(bytes, at).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    word(bytes, at).map(u64::from_le_bytes)
}

impl Page {
    fn flags(&self) -> u16 {
        word(&self.bytes, 8).map_or(0, u16::from_le_bytes)
    }

    fn count(&self) -> usize {
        word(&self.bytes, 10).map_or(0, |count| usize::from(u16::from_le_bytes(count)))
    }

    /// Key, value and flags of an element of a leaf.
    fn leaf(&self, index: usize) -> Option<(&[u8], &[u8], u32)> {
        let at = HEADER_BYTES + index * ELEMENT_BYTES;
        let [flags, place, key, value] = [0, 4, 8, 12].map(|field| u32_at(&self.bytes, at + field));
        let begin = at.checked_add(place? as usize)?;
        let middle = begin.checked_add(key? as usize)?;
        let end = middle.checked_add(value? as usize)?;
        Some((self.bytes.get(begin..middle)?, self.bytes.get(middle..end)?, flags?))
    }

    /// First key and page of an element of a branch.
    fn branch(&self, index: usize) -> Option<(&[u8], u64)> {
        let at = HEADER_BYTES + index * ELEMENT_BYTES;
        let begin = at.checked_add(u32_at(&self.bytes, at)? as usize)?;
        let end = begin.checked_add(u32_at(&self.bytes, at + 4)? as usize)?;
        Some((self.bytes.get(begin..end)?, u64_at(&self.bytes, at + 8)?))
    }
}

/// The root that a page names: its page size, the page of the tree, its transaction.
fn meta(page: &[u8]) -> Option<(u64, u64, u64)> {
    let meta = page.get(HEADER_BYTES..HEADER_BYTES + 64)?;
    let sum = meta[..56]
        .iter()
        .fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
    let sound = u32_at(meta, 0)? == MAGIC && u32_at(meta, 4)? == VERSION && u64_at(meta, 56)? == sum;
    sound.then_some((u64::from(u32_at(meta, 8)?), u64_at(meta, 16)?, u64_at(meta, 48)?))
}

impl Bolt {
    /// Finds the newest root of a file, of which the first `size` bytes count.
    ///
    /// # Errors
    /// It is no such file, or cannot be read.
    pub fn open(file: File, size: u64) -> Result<Bolt, RowError> {
        let read = |offset: u64| {
            let mut page = [0; HEADER_BYTES + 64];
            file.read_exact_at(&mut page, offset).ok().filter(|()| offset < size).and_then(|()| meta(&page))
        };
        let first = read(0);
        let second = match first {
            Some((page_size, ..)) => read(page_size),
            None => PAGE_SIZES.iter().find_map(|&size| read(size).filter(|found| found.0 == size)),
        };
        let newest = first.into_iter().chain(second).max_by_key(|(_, _, transaction)| *transaction);
        let Some((page_size, root, _)) = newest.filter(|(page_size, ..)| (512..=1 << 20).contains(page_size)) else {
            return Err(RowError::byte(0, "this is no snapshot of etcd (a file of bbolt)"));
        };
        Ok(Bolt { file, size, page_size, root })
    }

    /// Reads a page, at the cost of a budget of bytes.
    fn page(&self, number: u64, budget: &mut u64) -> Result<Page, RowError> {
        let offset = number.checked_mul(self.page_size).filter(|offset| *offset < self.size);
        let offset = offset.ok_or_else(|| RowError::byte(0, format!("the file has no page {number}")))?;
        let mut header = [0; HEADER_BYTES];
        let failed = |error: std::io::Error| RowError::byte(offset, error.to_string());
        self.file.read_exact_at(&mut header, offset).map_err(failed)?;
        let pages = 1 + u64::from(u32_at(&header, 12).unwrap_or(0));
        let bytes = pages * self.page_size;
        if u64_at(&header, 0) != Some(number) || bytes > self.size - offset {
            return Err(RowError::byte(offset, format!("this is not page {number}")));
        }
        *budget =
            budget.checked_sub(bytes).ok_or_else(|| RowError::byte(offset, "the pages of the file form no tree"))?;
        let mut page = Page { offset, bytes: vec![0; bytes as usize] };
        self.file.read_exact_at(&mut page.bytes, offset).map_err(failed)?;
        Ok(page)
    }

    /// Walks over the pairs of a bucket.
    ///
    /// # Errors
    /// There is no such bucket.
    pub fn bucket(&self, name: &[u8]) -> Result<Walk, RowError> {
        let mut pages = self.size;
        let mut walk = Walk { path: vec![(self.page(self.root, &mut pages)?, 0)], pages, elements: self.size };
        while let Some(mut element) = walk.step(self)? {
            if element.key == name && element.flags & ELEMENT_BUCKET != 0 {
                // `u64 root page, u64 sequence`; a small bucket is a page behind them.
                let root = match u64_at(&element.value, 0) {
                    Some(0) if element.value.len() >= HEADER_BYTES => {
                        Page { offset: element.offset, bytes: element.value.split_off(HEADER_BYTES) }
                    }
                    Some(number) if number > 0 => self.page(number, &mut walk.pages)?,
                    _ => return Err(RowError::byte(element.offset, "a bucket without a root")),
                };
                return Ok(Walk { path: vec![(root, 0)], pages: walk.pages, elements: self.size });
            }
        }
        let name = String::from_utf8_lossy(name);
        Err(RowError::byte(0, format!("the file has no bucket `{name}`: it is no snapshot of etcd 3")))
    }
}

/// A pair of a bucket.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Element {
    /// Its key.
    pub key: Vec<u8>,
    /// Its value.
    pub value: Vec<u8>,
    /// Offset of its page.
    pub offset: u64,
    flags: u32,
}

/// The pages from the root of a bucket to the place of the next pair.
pub struct Walk {
    path: Vec<(Page, usize)>,
    /// Bytes of pages that it may still read: a tree that shares pages, or loops, has more than the file.
    pages: u64,
    /// Bytes of keys and values that it may still give: pairs that overlap have more than the file.
    elements: u64,
}

impl Walk {
    /// The next pair.
    ///
    /// # Errors
    /// A page is damaged, or cannot be read.
    pub fn step(&mut self, bolt: &Bolt) -> Result<Option<Element>, RowError> {
        while let Some((page, index)) = self.path.last_mut() {
            let damaged = || RowError::byte(page.offset, "a damaged page");
            if *index >= page.count() {
                self.path.pop();
                continue;
            }
            let place = *index;
            *index += 1;
            match page.flags() {
                FLAG_LEAF => {
                    let (key, value, flags) = page.leaf(place).ok_or_else(damaged)?;
                    let bytes = (key.len() + value.len()) as u64;
                    self.elements = self.elements.checked_sub(bytes).ok_or_else(damaged)?;
                    return Ok(Some(Element { key: key.to_vec(), value: value.to_vec(), offset: page.offset, flags }));
                }
                FLAG_BRANCH => {
                    let (_, number) = page.branch(place).ok_or_else(damaged)?;
                    let child = bolt.page(number, &mut self.pages)?;
                    self.path.push((child, 0));
                }
                _ => return Err(damaged()),
            }
        }
        Ok(None)
    }
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    const PAGE: usize = 512;

    fn page(number: u64, flags: u16, elements: &[(u32, Vec<u8>, Vec<u8>, u64)]) -> Vec<u8> {
        let mut page = vec![0; HEADER_BYTES];
        page[..8].copy_from_slice(&number.to_le_bytes());
        page[8..10].copy_from_slice(&flags.to_le_bytes());
        page[10..12].copy_from_slice(&(elements.len() as u16).to_le_bytes());
        let mut behind = elements.len() * ELEMENT_BYTES;
        let mut content = Vec::new();
        for (place, (kind, key, value, child)) in elements.iter().enumerate() {
            let pointer = (behind - place * ELEMENT_BYTES) as u32;
            let fields = match flags {
                FLAG_LEAF => [*kind, pointer, key.len() as u32, value.len() as u32],
                _ => [pointer, key.len() as u32, *child as u32, (*child >> 32) as u32],
            };
            page.extend(fields.iter().flat_map(|field| field.to_le_bytes()));
            content.extend([&key[..], value].concat());
            behind += key.len() + value.len();
        }
        page.extend(content);
        let overflow = page.len().div_ceil(PAGE) - 1;
        page[12..16].copy_from_slice(&(overflow as u32).to_le_bytes());
        page.resize((overflow + 1) * PAGE, 0);
        page
    }

    fn meta_page(number: u64, root: u64, transaction: u64) -> Vec<u8> {
        let mut meta = Vec::new();
        meta.extend([MAGIC, VERSION, PAGE as u32, 0].iter().flat_map(|word| word.to_le_bytes()));
        meta.extend([root, 0, 0, 99, transaction].iter().flat_map(|word| word.to_le_bytes()));
        let sum = meta.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        meta.extend(sum.to_le_bytes());
        let mut page = vec![0; HEADER_BYTES];
        page[..8].copy_from_slice(&number.to_le_bytes());
        page.extend(meta);
        page.resize(PAGE, 0);
        page
    }

    /// A file whose bucket `key` has these pairs, two or three on each leaf.
    pub fn file(pairs: &[(Vec<u8>, Vec<u8>)]) -> Vec<u8> {
        let leaf = |pairs: &[(Vec<u8>, Vec<u8>)]| -> Vec<(u32, Vec<u8>, Vec<u8>, u64)> {
            pairs.iter().map(|(key, value)| (0, key.clone(), value.clone(), 0)).collect()
        };
        let mut file = [meta_page(0, 2, 7), meta_page(1, 77, 6)].concat();
        let bucket = 3u64;
        let root = [&bucket.to_le_bytes()[..], &[0; 8]].concat();
        let name = |name: &str| name.as_bytes().to_vec();
        // A bucket beside it that is inline.
        let inline = [vec![0; 16], page(0, FLAG_LEAF, &leaf(&[(name("x"), name("y"))]))[..50].to_vec()].concat();
        let buckets = [(1, name("alarm"), inline, 0), (1, name("key"), root, 0)];
        file.extend(page(2, FLAG_LEAF, &buckets));
        let leaves: Vec<&[(Vec<u8>, Vec<u8>)]> = pairs.chunks(3).collect();
        // The branch takes as many pages as it needs; its children are behind it.
        let size = |first: u64| {
            let mut number = first;
            let children: Vec<_> = leaves
                .iter()
                .map(|pairs| {
                    let child = number;
                    number += (page(0, FLAG_LEAF, &leaf(pairs)).len() / PAGE) as u64;
                    (0, pairs[0].0.clone(), Vec::new(), child)
                })
                .collect();
            page(bucket, FLAG_BRANCH, &children)
        };
        let first = bucket + (size(0).len() / PAGE) as u64;
        file.extend(size(first));
        for pairs in leaves {
            let number = (file.len() / PAGE) as u64;
            file.extend(page(number, FLAG_LEAF, &leaf(pairs)));
        }
        file
    }

    /// A file that is gone when it is closed.
    pub fn opened(bytes: &[u8]) -> File {
        static COUNT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let number = COUNT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("coppice-bbolt-{}-{number}", std::process::id()));
        std::fs::write(&path, bytes).expect("the temporary directory takes a file");
        let file = File::open(&path).expect("it is there");
        std::fs::remove_file(&path).expect("it is there");
        file
    }

    #[test]
    fn a_bucket_is_walked_in_order_over_branches_and_overflow() {
        let pairs: Vec<_> =
            (0..40u8).map(|n| (vec![n, 1], vec![n; usize::from(n) * if n == 20 { 100 } else { 3 }])).collect();
        let bytes = file(&pairs);
        let bolt = Bolt::open(opened(&bytes), bytes.len() as u64).expect("a file");
        let mut walk = bolt.bucket(b"key").expect("a bucket");
        let mut found = Vec::new();
        while let Some(element) = walk.step(&bolt).expect("whole pages") {
            found.push((element.key, element.value));
        }
        assert_eq!(found, pairs);
        let mut inline = bolt.bucket(b"alarm").expect("a bucket");
        assert_eq!(inline.step(&bolt).expect("a page").map(|element| element.value), Some(b"y".to_vec()));
        assert!(bolt.bucket(b"lease").is_err());
    }

    /// What the bucket `key` of a file ends with, whose pages from its root on are these.
    fn refused(pages: &[Vec<u8>]) -> String {
        let whole = file(&[]);
        let bytes = [&whole[..3 * PAGE], &pages.concat()].concat();
        let bolt = Bolt::open(opened(&bytes), bytes.len() as u64).expect("a file");
        let mut walk = bolt.bucket(b"key").expect("a bucket");
        loop {
            match walk.step(&bolt) {
                Ok(element) => assert!(element.is_some(), "nothing was refused"),
                Err(error) => return error.what,
            }
        }
    }

    #[test]
    fn a_walk_reads_and_gives_no_more_than_the_file_holds() {
        let no_tree = "the pages of the file form no tree";
        let children = |page: u64| vec![(0, b"k".to_vec(), Vec::new(), page); 4];
        // Four times the same leaf, which with its overflow is half of the file; and a root that claims all of it.
        let leaf = page(4, FLAG_LEAF, &[(0, b"k".to_vec(), vec![7; 4 * PAGE], 0)]);
        assert_eq!(refused(&[page(3, FLAG_BRANCH, &children(4)), leaf.clone()]), no_tree);
        let mut root = page(3, FLAG_BRANCH, &children(4));
        root[12..16].copy_from_slice(&(leaf.len() as u32 / PAGE as u32).to_le_bytes());
        assert_eq!(refused(&[root, leaf]), no_tree);
        // Elements that are all the same bytes.
        let mut leaf = page(3, FLAG_LEAF, &[(0, b"k".to_vec(), vec![7; 4 * PAGE], 0)]);
        leaf[10] = 4;
        for place in 1..4 {
            let at = HEADER_BYTES + place * ELEMENT_BYTES;
            leaf.copy_within(HEADER_BYTES..HEADER_BYTES + ELEMENT_BYTES, at);
        }
        assert_eq!(refused(&[leaf]), "a damaged page");
    }
}
