//! Numbers to bytes and back: fixed ones little-endian, small ones in seven bits a byte.

/// Appends a small number.
pub(in crate::fleet) fn put_small(out: &mut Vec<u8>, mut number: u32) {
    while number >= 0x80 {
        out.push(number.to_le_bytes()[0] | 0x80);
        number >>= 7;
    }
    out.push(number.to_le_bytes()[0]);
}

/// Bytes that are read from the start on. Every reader returns `None` where they end too early.
#[derive(Debug)]
pub(in crate::fleet) struct Reader<'a>(pub(in crate::fleet) &'a [u8]);

impl<'a> Reader<'a> {
    /// The next bytes.
    pub(in crate::fleet) fn bytes(&mut self, count: usize) -> Option<&'a [u8]> {
        let (bytes, rest) = self.0.split_at_checked(count)?;
        self.0 = rest;
        Some(bytes)
    }

    /// The next byte.
    pub(in crate::fleet) fn byte(&mut self) -> Option<u8> {
        Some(self.bytes(1)?[0])
    }

    /// The next 32 bits.
    pub(in crate::fleet) fn u32(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.bytes(4)?.try_into().ok()?))
    }

    /// The next 64 bits.
    pub(in crate::fleet) fn u64(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.bytes(8)?.try_into().ok()?))
    }

    /// The next small number. It has one spelling.
    pub(in crate::fleet) fn small(&mut self) -> Option<u32> {
        let mut number = 0;
        for shift in (0..32).step_by(7) {
            let byte = u32::from(self.byte()?);
            let bits = byte & 0x7F;
            if (bits << shift) >> shift != bits {
                return None;
            }
            number |= bits << shift;
            if byte < 0x80 {
                return (bits > 0 || shift == 0).then_some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_number_comes_back_and_has_one_spelling() {
        for number in [0, 1, 127, 128, 300, 16_383, 16_384, 1 << 28, u32::MAX] {
            let mut bytes = Vec::new();
            put_small(&mut bytes, number);
            assert_eq!(Reader(&bytes).small(), Some(number));
            for cut in 0..bytes.len() {
                assert_eq!(Reader(&bytes[..cut]).small(), None);
            }
        }
        for other in [&[0x80, 0][..], &[0xFF; 5], &[0x80, 0x80, 0x80, 0x80, 0x10]] {
            assert_eq!(Reader(other).small(), None, "{other:?}");
        }
    }
}
