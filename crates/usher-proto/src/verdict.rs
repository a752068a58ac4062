//! Two bytes of verdict: 0 is granted, anything else a refusal's code.

use crate::codec::Reader;
use crate::{DecodeError, Refusal};

pub(crate) fn put(out: &mut Vec<u8>, verdict: Result<(), Refusal>) {
    let code = match verdict {
        Ok(()) => 0,
        Err(refusal) => refusal.code(),
    };
    out.extend_from_slice(&code.to_be_bytes());
}

pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Result<(), Refusal>, DecodeError> {
    match reader.u16()? {
        0 => Ok(Ok(())),
        code => Ok(Err(from_code(code)?)),
    }
}

pub(crate) fn read_refusal(reader: &mut Reader<'_>) -> Result<Refusal, DecodeError> {
    from_code(reader.u16()?)
}

fn from_code(code: u16) -> Result<Refusal, DecodeError> {
    Refusal::from_code(code).ok_or(DecodeError::Malformed { field: "refusal" })
}
