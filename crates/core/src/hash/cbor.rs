//! Canonical CBOR (RFC 8949) of what a block's message contains.
//!
//! Every length and integer takes its shortest form; equal values always give equal bytes.

use super::encode::{Encode, Tag, WORD, write_words};

const UNSIGNED: u8 = 0;
const NEGATIVE: u8 = 1;
const BYTES: u8 = 2;
const TEXT: u8 = 3;
const ARRAY: u8 = 4;
const NULL: u8 = 0xf6;

/// Writes one message at a time into a buffer that it keeps.
#[derive(Debug)]
pub(super) struct Cbor {
    out: Vec<u8>,
}

impl Cbor {
    pub(super) fn new() -> Self {
        Self {
            out: Vec::with_capacity(256),
        }
    }

    /// A major type with its argument in the shortest form.
    fn head(&mut self, major: u8, argument: u64) {
        let major = major << 5;
        let bytes = argument.to_be_bytes();
        let (info, width) = match argument {
            0..24 => (bytes[7], 0),
            24..0x100 => (24, 1),
            0x100..0x1_0000 => (25, 2),
            0x1_0000..0x1_0000_0000 => (26, 4),
            _ => (27, 8),
        };
        self.out.push(major | info);
        self.out.extend_from_slice(&bytes[8 - width..]);
    }
}

impl Encode for Cbor {
    fn start(&mut self) {
        self.out.clear();
    }

    fn open(&mut self, len: usize) {
        self.head(ARRAY, len as u64);
    }

    fn close(&mut self, _len: usize) {}

    fn bytes(&mut self, value: &[u8]) {
        self.head(BYTES, value.len() as u64);
        self.out.extend_from_slice(value);
    }

    fn text(&mut self, value: &str) {
        self.head(TEXT, value.len() as u64);
        self.out.extend_from_slice(value.as_bytes());
    }

    fn tag(&mut self, tag: Tag) {
        self.text(tag.text());
    }

    fn int(&mut self, value: i64) {
        let major = if value < 0 { NEGATIVE } else { UNSIGNED };
        // CBOR writes a negative n as -1 - n, which is the complement.
        let argument = if value < 0 { !value } else { value };
        self.head(major, argument.unsigned_abs());
    }

    fn none(&mut self) {
        self.out.push(NULL);
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.open(tokens.len());
        write_words(&mut self.out, tokens, token_word);
    }

    fn finish(&mut self) -> &[u8] {
        &self.out
    }
}

/// Head byte and argument of an unsigned integer, big-endian.
fn token_word(token: u32) -> ([u8; WORD], usize) {
    const WIDTH: [usize; 4] = [1, 2, 3, 5];
    const SHIFT: [u32; 4] = [56, 48, 40, 24];
    const HEAD: [u64; 4] = [0, 24 << 56, 25 << 56, 26 << 56];
    let class = usize::from(token > 23) + usize::from(token > 0xff) + usize::from(token > 0xffff);
    let word = HEAD[class] | u64::from(token) << SHIFT[class];
    (word.to_be_bytes(), WIDTH[class])
}
