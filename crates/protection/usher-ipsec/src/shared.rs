//! The data that the programs and this crate share, generated from bpf/include/usher_ipsec.h.
#![allow(dead_code, reason = "a header may declare what only programs use")]

include!(concat!(env!("OUT_DIR"), "/usher_ipsec.rs"));
