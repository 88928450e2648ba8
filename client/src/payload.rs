//! What can be appended as it is.

use bytes::Bytes;

/// The bytes of a record: owned ones are taken over, borrowed ones are copied once.
pub trait IntoPayload {
    /// The bytes.
    fn into_payload(self) -> Bytes;
}

macro_rules! taken_over {
    ($($owned:ty),*) => {
        $(impl IntoPayload for $owned {
            fn into_payload(self) -> Bytes {
                self.into()
            }
        })*
    };
}

taken_over!(Bytes, Vec<u8>, String, Box<[u8]>);

impl IntoPayload for &[u8] {
    fn into_payload(self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

impl<const N: usize> IntoPayload for &[u8; N] {
    fn into_payload(self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

impl<const N: usize> IntoPayload for [u8; N] {
    fn into_payload(self) -> Bytes {
        Bytes::copy_from_slice(&self)
    }
}

impl IntoPayload for &str {
    fn into_payload(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl IntoPayload for &Vec<u8> {
    fn into_payload(self) -> Bytes {
        Bytes::copy_from_slice(self)
    }
}

impl IntoPayload for &String {
    fn into_payload(self) -> Bytes {
        Bytes::copy_from_slice(self.as_bytes())
    }
}

impl IntoPayload for &Bytes {
    fn into_payload(self) -> Bytes {
        self.clone()
    }
}
