//! Entries as the kernel's messages, and the kernel's messages as entries.

use ipnet::IpNet;
use netlink_packet_xfrm::constants::{
    AF_INET, AF_INET6, IPPROTO_AH, IPPROTO_ESP, IPPROTO_TCP, XFRM_MODE_TRANSPORT,
    XFRM_POLICY_ALLOW, XFRM_POLICY_BLOCK, XFRM_POLICY_IN, XFRM_POLICY_OUT,
};
use netlink_packet_xfrm::policy::ModifyMessage;
use netlink_packet_xfrm::{Address, Mark, Selector, UserPolicyInfo, UserTemplate, XfrmAttrs};
use usher_protection::Profile;

use super::wanted::{FIRST, LAST};
use super::{Action, Entry, Selected};
use crate::marks::{MarkMask, class_of};
use crate::netlink::decode_address;

fn family(selected: &Selected) -> u16 {
    match selected.destination {
        IpNet::V4(_) => AF_INET,
        IpNet::V6(_) => AF_INET6,
    }
}

pub(super) fn direction(selected: &Selected) -> u8 {
    if selected.inbound {
        XFRM_POLICY_IN
    } else {
        XFRM_POLICY_OUT
    }
}

fn port_mask(port: Option<u16>) -> u16 {
    port.map_or(0, |_| u16::MAX)
}

pub(super) fn selector(selected: &Selected) -> Selector {
    let (local, remote) = (selected.local_port, selected.remote_port);
    let both = Selector {
        family: family(selected),
        proto: if selected.tcp { IPPROTO_TCP } else { 0 },
        ..Selector::default()
    };
    let address = Address::from_ip(&selected.destination.addr());
    let prefix = selected.destination.prefix_len();
    if selected.inbound {
        Selector {
            saddr: address,
            prefixlen_s: prefix,
            sport: remote.unwrap_or(0),
            sport_mask: port_mask(remote),
            dport: local.unwrap_or(0),
            dport_mask: port_mask(local),
            ..both
        }
    } else {
        Selector {
            daddr: address,
            prefixlen_d: prefix,
            sport: local.unwrap_or(0),
            sport_mask: port_mask(local),
            dport: remote.unwrap_or(0),
            dport_mask: port_mask(remote),
            ..both
        }
    }
}

pub(super) fn mark(selected: &Selected) -> XfrmAttrs {
    XfrmAttrs::Mark(Mark {
        value: selected.mark,
        mask: selected.mark_bits,
    })
}

pub(super) fn modification(selected: &Selected, entry: &Entry) -> ModifyMessage {
    let mut nlas = vec![mark(selected)];
    if let Some(Action::Protect { reqid, optional }) = entry.action {
        let mut template = UserTemplate {
            family: family(selected),
            reqid,
            mode: XFRM_MODE_TRANSPORT,
            optional: optional.into(),
            ..UserTemplate::default()
        };
        template.protocol(protocol(reqid));
        nlas.push(XfrmAttrs::Template(vec![template]));
    }
    ModifyMessage {
        user_policy_info: UserPolicyInfo {
            selector: selector(selected),
            priority: entry.priority,
            direction: direction(selected),
            action: match entry.action {
                Some(Action::Block) => XFRM_POLICY_BLOCK,
                _ => XFRM_POLICY_ALLOW,
            },
            ..UserPolicyInfo::default()
        },
        nlas,
    }
}

/// The protocol of the SAs that have this reqid.
fn protocol(of: u32) -> u8 {
    match class_of(of).map(|class| class.profile) {
        Some(Profile::Ah) => IPPROTO_AH,
        Some(Profile::Standard | Profile::Strong) | None => IPPROTO_ESP,
    }
}

/// The entry of a listed policy, if it is one of ours.
pub(super) fn ours(policy: &ModifyMessage, mask: MarkMask) -> Option<(Selected, Entry)> {
    let info = &policy.user_policy_info;
    let mark = policy.nlas.iter().find_map(|attribute| match attribute {
        XfrmAttrs::Mark(mark) => Some(mark),
        _ => None,
    })?;
    let inbound = match info.direction {
        XFRM_POLICY_IN => true,
        XFRM_POLICY_OUT => false,
        _ => return None,
    };
    let is_ours = (FIRST..=LAST).contains(&info.priority)
        && [mask.class_bits(), mask.signature_bits()].contains(&mark.mask);
    if !is_ours {
        return None;
    }
    let of = &info.selector;
    let port = |port: u16, mask: u16| (mask != 0).then_some(port);
    let source = (&of.saddr, of.prefixlen_s, port(of.sport, of.sport_mask));
    let target = (&of.daddr, of.prefixlen_d, port(of.dport, of.dport_mask));
    let ((.., local_port), (peer, prefix, remote_port)) = if inbound {
        (target, source)
    } else {
        (source, target)
    };
    let selected = Selected {
        inbound,
        destination: IpNet::new(decode_address(peer, of.family)?, prefix).ok()?,
        local_port,
        remote_port,
        tcp: of.proto == IPPROTO_TCP,
        mark: mark.value,
        mark_bits: mark.mask,
    };
    // Anything that this version would not have made counts as changed.
    let action = action(policy);
    let entry = Entry {
        priority: info.priority,
        action: action.filter(|action| {
            let entry = Entry {
                priority: info.priority,
                action: Some(*action),
            };
            let made = modification(&selected, &entry);
            made.user_policy_info.selector == info.selector && templates(&made) == templates(policy)
        }),
    };
    Some((selected, entry))
}

fn templates(policy: &ModifyMessage) -> &[UserTemplate] {
    let templates = policy.nlas.iter().find_map(|attribute| match attribute {
        XfrmAttrs::Template(templates) => Some(templates.as_slice()),
        _ => None,
    });
    templates.unwrap_or_default()
}

fn action(policy: &ModifyMessage) -> Option<Action> {
    match (policy.user_policy_info.action, templates(policy)) {
        (XFRM_POLICY_BLOCK, []) => Some(Action::Block),
        (XFRM_POLICY_ALLOW, []) => Some(Action::Allow),
        (XFRM_POLICY_ALLOW, [template]) => Some(Action::Protect {
            reqid: template.reqid,
            optional: template.optional != 0,
        }),
        _ => None,
    }
}
