//! Python's pickle, protocol 5, of what a block's message contains: the bytes of the C pickler.
//!
//! Two things make it more than a list of opcodes. *Frames*: a message is cut into frames of about
//! 64 KiB. *The memo*: an object met a second time is written as a reference, so equal bytes need
//! equal object identity. Which texts are one object is fixed here as it is in an engine that got
//! its request as a decoded message: the literal tags, and texts of at most one Latin-1 character
//! (the interpreter keeps one object of each); every other text is an object of its own, even if
//! its value occurs twice.

use super::encode::{Encode, Tag, WORD, write_words};
use smallvec::SmallVec;

const PROTO: [u8; 2] = [0x80, 5];
const FRAME: u8 = 0x95;
const FRAME_HEADER: usize = 9;
/// A frame that reached this many bytes ends before the next object; a payload that large has none.
const FRAME_TARGET: usize = 64 * 1024;
/// Fewer bytes than this are not worth a frame.
const FRAME_MIN: usize = 4;

const MARK: u8 = b'(';
const TUPLE: u8 = b't';
const TUPLE_OF: [u8; 4] = [0, 0x85, 0x86, 0x87];
const NONE: u8 = b'N';
const STOP: u8 = b'.';
const MEMOIZE: u8 = 0x94;
const BINGET: u8 = b'h';
const LONG_BINGET: u8 = b'j';
const BININT: u8 = b'J';
const BININT1: u8 = b'K';
const BININT2: u8 = b'M';
const LONG1: u8 = 0x8a;

/// Opcodes of a counted payload: with a 1-byte, a 4-byte and an 8-byte length.
type Counted = [u8; 3];
const BINBYTES: Counted = [b'C', b'B', 0x8e];
const BINUNICODE: Counted = [0x8c, b'X', 0x8d];

/// A text that is one object however often it occurs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Shared {
    Tag(Tag),
    Empty,
    Latin1(char),
}

/// Writes one message at a time into a buffer that it keeps.
#[derive(Debug)]
pub(super) struct Pickle {
    out: Vec<u8>,
    /// Where the open frame's header is.
    frame: Option<usize>,
    /// Objects memoised so far; the next one gets this index.
    memo_len: u32,
    shared: SmallVec<[(Shared, u32); 4]>,
}

impl Pickle {
    pub(super) fn new() -> Self {
        Self {
            out: Vec::with_capacity(256),
            frame: None,
            memo_len: 0,
            shared: SmallVec::new(),
        }
    }

    fn push(&mut self, bytes: &[u8]) {
        self.open_frame();
        self.out.extend_from_slice(bytes);
    }

    fn open_frame(&mut self) {
        if self.frame.is_none() {
            self.frame = Some(self.out.len());
            self.out.extend_from_slice(&[0; FRAME_HEADER]);
        }
    }

    fn frame_len(&self) -> usize {
        self.frame
            .map_or(0, |start| self.out.len() - start - FRAME_HEADER)
    }

    fn close_frame(&mut self) {
        let len = self.frame_len();
        let Some(start) = self.frame.take() else {
            return;
        };
        if len < FRAME_MIN {
            self.out.drain(start..start + FRAME_HEADER);
        } else {
            self.out[start] = FRAME;
            self.out[start + 1..start + FRAME_HEADER].copy_from_slice(&(len as u64).to_le_bytes());
        }
    }

    /// Precedes every object.
    fn begin_object(&mut self) {
        if self.frame_len() >= FRAME_TARGET {
            self.close_frame();
        }
    }

    fn memoize(&mut self) {
        self.push(&[MEMOIZE]);
        self.memo_len += 1;
    }

    fn counted(&mut self, opcodes: Counted, payload: &[u8]) {
        self.begin_object();
        let unframed = payload.len() >= FRAME_TARGET;
        if unframed {
            self.close_frame();
        } else {
            self.open_frame();
        }
        let len = (payload.len() as u64).to_le_bytes();
        let (opcode, width) = match payload.len() {
            0..0x100 => (opcodes[0], 1),
            0x100..=0xffff_ffff => (opcodes[1], 4),
            _ => (opcodes[2], 8),
        };
        self.out.push(opcode);
        self.out.extend_from_slice(&len[..width]);
        self.out.extend_from_slice(payload);
        self.memoize();
    }

    fn shared_text(&mut self, shared: Shared, text: &str) {
        let known = self
            .shared
            .iter()
            .find(|(s, _)| *s == shared)
            .map(|(_, index)| *index);
        if let Some(index) = known {
            return self.get(index);
        }
        self.shared.push((shared, self.memo_len));
        self.counted(BINUNICODE, text.as_bytes());
    }

    fn get(&mut self, index: u32) {
        self.begin_object();
        if let Ok(index) = u8::try_from(index) {
            self.push(&[BINGET, index]);
        } else {
            self.push(&[LONG_BINGET]);
            self.push(&index.to_le_bytes());
        }
    }
}

impl Encode for Pickle {
    fn start(&mut self) {
        self.out.clear();
        self.out.extend_from_slice(&PROTO);
        self.frame = None;
        self.memo_len = 0;
        self.shared.clear();
    }

    fn open(&mut self, len: usize) {
        self.begin_object();
        if len >= TUPLE_OF.len() {
            self.push(&[MARK]);
        }
    }

    fn close(&mut self, len: usize) {
        self.push(&[TUPLE_OF.get(len).copied().unwrap_or(TUPLE)]);
        self.memoize();
    }

    fn bytes(&mut self, value: &[u8]) {
        self.counted(BINBYTES, value);
    }

    fn text(&mut self, value: &str) {
        let mut chars = value.chars();
        match (chars.next(), chars.next()) {
            (None, _) => self.shared_text(Shared::Empty, value),
            (Some(only), None) if u32::from(only) < 0x100 => {
                self.shared_text(Shared::Latin1(only), value);
            }
            (Some(_), _) => self.counted(BINUNICODE, value.as_bytes()),
        }
    }

    fn tag(&mut self, tag: Tag) {
        self.shared_text(Shared::Tag(tag), tag.text());
    }

    fn int(&mut self, value: i64) {
        self.begin_object();
        let bytes = value.to_le_bytes();
        match value {
            0..0x100 => self.push(&[BININT1, bytes[0]]),
            0x100..0x1_0000 => self.push(&[BININT2, bytes[0], bytes[1]]),
            -0x8000_0000..0x8000_0000 => {
                self.push(&[BININT]);
                self.push(&bytes[..4]);
            }
            _ => {
                // Two's complement in the fewest bytes that keep the sign.
                let bits = 65 - (value ^ (value >> 63)).leading_zeros() as usize;
                let width = bits.div_ceil(8);
                self.push(&[LONG1, width.to_le_bytes()[0]]);
                self.push(&bytes[..width]);
            }
        }
    }

    fn none(&mut self) {
        self.begin_object();
        self.push(&[NONE]);
    }

    fn tokens(&mut self, tokens: &[u32]) {
        self.open(tokens.len());
        self.open_frame();
        let fits_a_frame = self.frame_len() + tokens.len() * 5 < FRAME_TARGET;
        let fits_an_int32 = tokens.iter().fold(0, |bits, token| bits | token) < 1 << 31;
        if fits_a_frame && fits_an_int32 {
            write_words(&mut self.out, tokens, token_word);
        } else {
            for token in tokens {
                self.int(i64::from(*token));
            }
        }
        self.close(tokens.len());
    }

    fn finish(&mut self) -> &[u8] {
        self.push(&[STOP]);
        self.close_frame();
        &self.out
    }
}

/// Opcode and little-endian value of an integer below 2^31.
fn token_word(token: u32) -> ([u8; WORD], usize) {
    const OPCODE: [u8; 3] = [BININT1, BININT2, BININT];
    const WIDTH: [usize; 3] = [2, 3, 5];
    let class = usize::from(token > 0xff) + usize::from(token > 0xffff);
    let word = u64::from(OPCODE[class]) | u64::from(token) << 8;
    (word.to_le_bytes(), WIDTH[class])
}
