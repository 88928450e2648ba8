//! Protobuf's encoding, as far as the hot messages need it by hand: fields one after the other over a frame, without a
//! copy and without a value in between.

use bytes::{BufMut, Bytes, BytesMut};

use super::WireError;

/// The key of a varint field below 16.
pub(super) const fn key_varint(field: u8) -> u8 {
    field << 3
}

/// The key of a length-delimited field below 16.
pub(super) const fn key_len(field: u8) -> u8 {
    field << 3 | 2
}

/// The key of a fixed32 field below 16.
pub(super) const fn key_fixed32(field: u8) -> u8 {
    field << 3 | 5
}

/// The key of a fixed64 field below 16.
pub(super) const fn key_fixed64(field: u8) -> u8 {
    field << 3 | 1
}

/// How many bytes `value` takes.
pub(super) const fn varint_len(value: u64) -> usize {
    // 9/64 is close enough to 1/7 over the 64 lengths that there are.
    ((64 - (value | 1).leading_zeros()) as usize * 9 + 64) / 64
}

/// How many bytes a varint field takes; proto3 leaves out zeros.
pub(super) const fn field_varint_len(value: u64) -> usize {
    if value == 0 { 0 } else { 1 + varint_len(value) }
}

/// How many bytes a length-delimited field takes.
pub(super) const fn field_bytes_len(len: usize) -> usize {
    1 + varint_len(len as u64) + len
}

pub(super) fn put_varint(out: &mut BytesMut, mut value: u64) {
    let mut bytes = [0; 10];
    let mut len = 0;
    while value >= 0x80 {
        bytes[len] = value as u8 | 0x80;
        value >>= 7;
        len += 1;
    }
    bytes[len] = value as u8;
    out.put_slice(&bytes[..=len]);
}

pub(super) fn put_field_varint(out: &mut BytesMut, field: u8, value: u64) {
    if value != 0 {
        out.put_u8(key_varint(field));
        put_varint(out, value);
    }
}

pub(super) fn put_field_bytes(out: &mut BytesMut, field: u8, bytes: &[u8]) {
    out.put_u8(key_len(field));
    put_varint(out, bytes.len() as u64);
    out.put_slice(bytes);
}

/// What a field holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Value<'a> {
    Varint(u64),
    Fixed64(u64),
    Fixed32(u32),
    /// A part of the frame.
    Bytes(&'a [u8]),
}

impl<'a> Value<'a> {
    #[inline]
    pub(super) fn varint(self) -> Result<u64, WireError> {
        match self {
            Self::Varint(value) => Ok(value),
            _ => Err(WIRE_TYPE),
        }
    }

    pub(super) fn fixed64(self) -> Result<u64, WireError> {
        match self {
            Self::Fixed64(value) => Ok(value),
            _ => Err(WIRE_TYPE),
        }
    }

    pub(super) fn fixed32(self) -> Result<u32, WireError> {
        match self {
            Self::Fixed32(value) => Ok(value),
            _ => Err(WIRE_TYPE),
        }
    }

    #[inline]
    pub(super) fn bytes(self) -> Result<&'a [u8], WireError> {
        match self {
            Self::Bytes(bytes) => Ok(bytes),
            _ => Err(WIRE_TYPE),
        }
    }

    /// A varint that must fit into 32 bits.
    pub(super) fn u32(self) -> Result<u32, WireError> {
        u32::try_from(self.varint()?).map_err(|_| WireError::Malformed("a number does not fit into 32 bits"))
    }
}

const WIRE_TYPE: WireError = WireError::Malformed("a field has another type than the protocol gives it");
const SHORT: WireError = WireError::Malformed("a field is longer than what holds it");

/// The fields of the message that a part of a frame holds.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(message: &'a [u8]) -> Self {
        Self { rest: message }
    }

    #[inline]
    fn varint(&mut self) -> Result<u64, WireError> {
        match self.rest {
            [byte @ 0..=0x7f, rest @ ..] => {
                self.rest = rest;
                Ok(u64::from(*byte))
            }
            _ => self.long_varint(),
        }
    }

    fn long_varint(&mut self) -> Result<u64, WireError> {
        let mut value = 0_u64;
        for (i, &byte) in self.rest.iter().take(10).enumerate() {
            if i == 9 && byte > 1 {
                return Err(WireError::Malformed("a number does not fit into 64 bits"));
            }
            value |= u64::from(byte & 0x7f) << (7 * i);
            if byte < 0x80 {
                self.rest = &self.rest[i + 1..];
                return Ok(value);
            }
        }
        Err(if self.rest.len() < 10 { SHORT } else { WireError::Malformed("a number does not fit into 64 bits") })
    }

    #[inline]
    fn chunk<const N: usize>(&mut self) -> Result<[u8; N], WireError> {
        let (chunk, rest) = self.rest.split_first_chunk::<N>().ok_or(SHORT)?;
        self.rest = rest;
        Ok(*chunk)
    }

    /// The next field's number and value; `None` at the end.
    #[inline]
    pub(super) fn next(&mut self) -> Result<Option<(u32, Value<'a>)>, WireError> {
        if self.rest.is_empty() {
            return Ok(None);
        }
        let key = self.varint()?;
        let field = u32::try_from(key >> 3).map_err(|_| WireError::Malformed("a field number is out of range"))?;
        if field == 0 {
            return Err(WireError::Malformed("there is no field 0"));
        }
        let value = match key & 7 {
            0 => Value::Varint(self.varint()?),
            1 => Value::Fixed64(u64::from_le_bytes(self.chunk()?)),
            2 => {
                let len = usize::try_from(self.varint()?).map_err(|_| SHORT)?;
                let (bytes, rest) = self.rest.split_at_checked(len).ok_or(SHORT)?;
                self.rest = rest;
                Value::Bytes(bytes)
            }
            5 => Value::Fixed32(u32::from_le_bytes(self.chunk()?)),
            _ => return Err(WireError::Malformed("a field has a type that the protocol does not use")),
        };
        Ok(Some((field, value)))
    }

    /// The numbers of a packed field.
    pub(super) fn packed(numbers: &'a [u8], into: &mut Vec<u64>) -> Result<(), WireError> {
        let mut fields = Self::new(numbers);
        while !fields.rest.is_empty() {
            into.push(fields.varint()?);
        }
        Ok(())
    }
}

/// A part of a frame as bytes that share it.
pub(super) fn share(frame: &Bytes, part: &[u8]) -> Bytes {
    if part.is_empty() { Bytes::new() } else { frame.slice_ref(part) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn varints_round_trip_and_have_the_length_they_say(shift in 0_u32..64, raw: u64) {
            let value = raw >> shift;
            let mut out = BytesMut::new();
            put_varint(&mut out, value);
            prop_assert_eq!(out.len(), varint_len(value));
            let mut fields = Fields::new(&out);
            prop_assert_eq!(fields.varint().unwrap(), value);
            prop_assert!(fields.rest.is_empty());
            // Cut anywhere it is no number.
            for end in 0..out.len() {
                prop_assert!(Fields::new(&out[..end]).varint().is_err());
            }
        }
    }

    #[test]
    fn numbers_above_64_bits_are_refused() {
        let over = [0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x02];
        assert!(Fields::new(&over).varint().is_err());
        assert!(Fields::new(&[0xff; 12]).varint().is_err());
    }

    #[test]
    fn groups_and_field_zero_and_lengths_beyond_the_end_are_refused() {
        for bytes in [&[0x0b_u8][..], &[0x00, 0x00], &[0x0a, 0x05, 1, 2], &[0x09, 1, 2], &[0x0d, 1], &[0x0f]] {
            assert!(Fields::new(bytes).next().is_err(), "{bytes:?}");
        }
    }
}
