//! A trial of this kernel's support for SAs.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use netlink_packet_xfrm::constants::{AF_INET, AF_INET6, IPPROTO_ESP, XFRM_MODE_TRANSPORT};
use netlink_packet_xfrm::state::ModifyMessage;
use netlink_packet_xfrm::{Address, AlgAead, Id, UserSaInfo, XfrmAttrs, XfrmMessage};

use usher_bpf::Lack;

use crate::netlink::Channel;

/// The algorithm that both kinds of protection use, as the kernel calls it.
const ALGORITHM: &str = "rfc4106(gcm(aes))";
/// AES-256 and the salt, in bytes.
const KEY: usize = 36;
const TAG_BITS: u32 = 128;

/// Tries whether this kernel makes SAs of ESP with AES-256-GCM, by making some. The caller's network
/// namespace should be a new one: they stay in it.
///
/// # Errors
/// The missing parts of the kernel.
pub fn probe_esp() -> Result<(), Lack> {
    let mut channel =
        Channel::open().map_err(|error| Lack::new(format!("{error} (CONFIG_XFRM_USER)")))?;
    let ipv4 = IpAddr::from(Ipv4Addr::LOCALHOST);
    let ipv6 = IpAddr::from(Ipv6Addr::LOCALHOST);
    for (address, family, module, option) in [
        (ipv4, AF_INET, "esp4", "CONFIG_INET_ESP"),
        (ipv6, AF_INET6, "esp6", "CONFIG_INET6_ESP"),
    ] {
        let sa = XfrmMessage::AddSa(sa(address, family));
        channel.request("make an SA of ESP", sa).map_err(|error| {
            Lack::new(format!(
                "{error}; this kernel needs {option} (`modprobe {module}`) and AES-GCM (CONFIG_CRYPTO_GCM)"
            ))
        })?;
    }
    Ok(())
}

fn sa(address: IpAddr, family: u16) -> ModifyMessage {
    let address = Address::from_ip(&address);
    let mut alg_name = [0; 64];
    alg_name[..ALGORITHM.len()].copy_from_slice(ALGORITHM.as_bytes());
    let algorithm = AlgAead {
        alg_name,
        alg_key_len: u8::BITS * KEY as u32,
        alg_icv_len: TAG_BITS,
        alg_key: vec![0; KEY],
    };
    ModifyMessage {
        user_sa_info: UserSaInfo {
            id: Id {
                daddr: address,
                spi: 0x1001_0110,
                proto: IPPROTO_ESP,
            },
            saddr: address,
            family,
            mode: XFRM_MODE_TRANSPORT,
            ..UserSaInfo::default()
        },
        nlas: vec![XfrmAttrs::EncryptionAlgAead(algorithm)],
    }
}
