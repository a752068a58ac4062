//! The lengths of prefixes from which on the kernel finds entries by a hash.
//!
//! By default it does so only if both addresses of an entry are single ones. Our entries name the other
//! host's only. The kernel keeps such entries in a tree of networks, in which all entries within the
//! network of another one are one list: 10,000 peers in a /16 that a block names would be 10,000 steps
//! for each packet and for each change. So the length for this host's address is set to 0. It is a matter of speed
//! only, so lengths that somebody else has chosen stay.

use netlink_packet_xfrm::XfrmMessage;
use netlink_packet_xfrm::policy::{NewSpdInfoMessage, SpdHThresh, SpdInfoAttrs};

use super::Spd;
use crate::error::IpsecError;

/// For this host's address and the other host's, of IPv4 and IPv6.
type Lengths = [(u8, u8); 2];

const USUAL: Lengths = [(32, 32), (128, 128)];
const OURS: Lengths = [(0, 32), (0, 128)];

impl Spd {
    /// Makes the kernel find entries of single peers by their addresses.
    pub(super) fn hash_peers(&mut self) -> Result<(), IpsecError> {
        self.set_lengths(USUAL, OURS)
    }

    /// Undoes [`Self::hash_peers`].
    pub(super) fn hash_as_usual(&mut self) -> Result<(), IpsecError> {
        self.set_lengths(OURS, USUAL)
    }

    fn set_lengths(&mut self, from: Lengths, to: Lengths) -> Result<(), IpsecError> {
        let info = self.channel.spd_info()?;
        let present = |family: usize| {
            info.nlas.iter().find_map(|attribute| match attribute {
                SpdInfoAttrs::SpdIpv4HThresh(set) if family == 0 => Some((set.lbits, set.rbits)),
                SpdInfoAttrs::SpdIpv6HThresh(set) if family == 1 => Some((set.lbits, set.rbits)),
                _ => None,
            })
        };
        let families = [SpdInfoAttrs::SpdIpv4HThresh, SpdInfoAttrs::SpdIpv6HThresh];
        let families = families.into_iter().enumerate();
        let nlas: Vec<SpdInfoAttrs> = families
            .filter(|(family, _)| present(*family) == Some(from[*family]))
            .map(|(family, attribute)| {
                let (lbits, rbits) = to[family];
                attribute(SpdHThresh { lbits, rbits })
            })
            .collect();
        if nlas.is_empty() {
            return Ok(());
        }
        let set = XfrmMessage::NewSpdInfo(NewSpdInfoMessage { flags: 0, nlas });
        self.channel.request("set how the SPD is searched", set)
    }
}
