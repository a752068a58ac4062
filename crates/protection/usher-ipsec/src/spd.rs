//! The entries of the SPD: from marks to templates.
//!
//! All are of the direction `out`, select by bits of our mask, and have priorities of our own band.
//! By that ours are recognised; entries of others are never touched.
//!
//! - A socket with a class mark, connected or accepted, finds the entry of its class.
//! - A socket with a signature as well, which has no peer yet, finds the entry for its application,
//!   its peer's network and the ports first, and falls back to the entry of its class.
//!
//! Entries of signatures for all addresses are left out where the class says the same: the kernel
//! would compare each packet with all of them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::IpNet;
use netlink_packet_xfrm::constants::{
    AF_INET, AF_INET6, IPPROTO_ESP, XFRM_MODE_TRANSPORT, XFRM_POLICY_ALLOW, XFRM_POLICY_BLOCK,
    XFRM_POLICY_OUT,
};
use netlink_packet_xfrm::policy::{DelGetMessage, ModifyMessage};
use netlink_packet_xfrm::{
    Address, Mark, Selector, UserPolicyId, UserPolicyInfo, UserTemplate, XfrmAttrs, XfrmMessage,
};
use usher_protection::{Class, Level, Tables};

use crate::error::IpsecError;
use crate::marks::{BYPASS, DISCARD, MarkMask, reqid};
use crate::netlink::{Channel, address};
use crate::plan::{Application, Line};

/// The most lines of ports that a network may have.
pub(crate) const MOST_LINES: usize = 1024;

/// The first priority of our band; a lower number is looked at first.
const FIRST: u32 = 30_000;
/// Peers that are held to a class.
const OF_HELD: u32 = FIRST + 129 * MOST_LINES as u32;
/// The entries of classes.
const OF_CLASS: u32 = OF_HELD + 1;
const LAST: u32 = OF_CLASS;

/// What an entry does with a packet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Action {
    /// It passes as it is.
    Allow,
    /// The call fails with EPERM.
    Block,
    /// It is protected by the SA with this request id.
    Protect {
        /// See [`reqid`].
        reqid: u32,
        /// As long as there is no SA, packets pass as they are (`level use`).
        optional: bool,
    },
}

/// The packets that an entry selects: no two entries have the same.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Selected {
    /// Packets to these addresses.
    pub destination: IpNet,
    /// From this port; none: any.
    pub local_port: Option<u16>,
    /// To this port; none: any.
    pub remote_port: Option<u16>,
    /// The value of the mark's bits.
    pub mark: u32,
    /// The bits of the mark that are compared.
    pub mark_bits: u32,
}

/// What an entry does, and when it is looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The lower, the earlier.
    pub priority: u32,
    /// None: of a form that this version never makes.
    pub action: Option<Action>,
}

/// Entries by what they select.
pub type Entries = BTreeMap<Selected, Entry>;

/// The SPD of a network namespace, as far as it is ours.
#[derive(Debug)]
pub struct Spd {
    channel: Channel,
    mask: MarkMask,
}

impl Spd {
    /// That of the caller's network namespace. Changes nothing yet.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn open(mask: MarkMask) -> Result<Self, IpsecError> {
        let channel = Channel::open()?;
        Ok(Self { channel, mask })
    }

    /// Our entries, whoever has changed them.
    ///
    /// # Errors
    /// The kernel's error.
    pub fn entries(&mut self) -> Result<Entries, IpsecError> {
        let mask = self.mask;
        let all = self.channel.policies()?;
        let ours = all.iter().filter_map(|message| match message {
            XfrmMessage::AddPolicy(policy) => ours(policy, mask),
            _ => None,
        });
        Ok(ours.collect())
    }

    /// Adds and replaces what is missing or differs. Returns the number of changes.
    ///
    /// # Errors
    /// The kernel's error; some are changed then.
    pub(crate) fn enter(&mut self, wanted: &Entries) -> Result<usize, IpsecError> {
        let present = self.entries()?;
        let missing = wanted
            .iter()
            .filter(|(selected, entry)| present.get(selected) != Some(entry));
        let mut changes = 0;
        for (selected, entry) in missing {
            self.put(selected, entry)?;
            changes += 1;
        }
        Ok(changes)
    }

    /// Removes all others of ours. Returns their number.
    ///
    /// # Errors
    /// The kernel's error; some are removed then.
    pub(crate) fn retain(&mut self, wanted: &Entries) -> Result<usize, IpsecError> {
        let mut present = self.entries()?;
        present.retain(|selected, _| !wanted.contains_key(selected));
        for selected in present.keys() {
            let delete = XfrmMessage::DeletePolicy(DelGetMessage {
                user_policy_id: UserPolicyId {
                    selector: selector(selected),
                    index: 0,
                    direction: XFRM_POLICY_OUT,
                },
                nlas: vec![mark(selected)],
            });
            self.channel
                .request("removing an entry of the SPD", delete)?;
        }
        Ok(present.len())
    }

    /// Adds an entry or replaces the one that selects the same. Either way, sockets look for their
    /// route and SA again.
    pub(crate) fn put(&mut self, selected: &Selected, entry: &Entry) -> Result<(), IpsecError> {
        let update = XfrmMessage::UpdatePolicy(modification(selected, entry));
        self.channel.request("changing the SPD", update)
    }
}

/// The entries for these applications, and for peers that are held to a class.
pub(crate) fn wanted<'a>(
    tables: &Tables,
    applications: &[Application],
    held: impl IntoIterator<Item = &'a (Class, IpAddr)>,
    mask: MarkMask,
) -> Entries {
    let mut entries = Entries::new();
    let numbers = tables
        .classes
        .iter()
        .map(|(class, level)| class.mark(*level));
    for number in numbers.chain([DISCARD]) {
        for destination in everywhere() {
            let selected = Selected {
                destination,
                local_port: None,
                remote_port: None,
                mark: mask.numbered(number),
                mark_bits: mask.class_bits(),
            };
            entries.insert(selected, of_number(number, OF_CLASS));
        }
    }
    for (class, peer) in held {
        let selected = Selected {
            destination: (*peer).into(),
            local_port: None,
            remote_port: None,
            mark: mask.class_mark(*class, Level::Optional),
            mark_bits: mask.class_bits(),
        };
        let entry = of_number(class.mark(Level::Mandatory), OF_HELD);
        entries.insert(selected, entry);
    }
    for application in applications {
        if application.signature != 0 {
            sign(&mut entries, application, mask);
        }
    }
    entries
}

/// The entries of an application's signature.
fn sign(entries: &mut Entries, application: &Application, mask: MarkMask) {
    let same = application.remaining(true) == application.remaining(false);
    for (network, lines) in &application.networks {
        // IPv4 packets of an IPv6 socket have the class of what remains for IPv6.
        let by_class = network.prefix_len() == 0 && (same || network.addr().is_ipv6());
        let length = 128 - u32::from(network.prefix_len());
        let first = FIRST + length * MOST_LINES as u32;
        for (priority, line) in (first..).zip(lines) {
            if by_class && line.is_of_all_ports() {
                continue;
            }
            let selected = Selected {
                destination: network.trunc(),
                local_port: line.local,
                remote_port: line.remote,
                mark: mask.signed(application.signature),
                mark_bits: mask.signature_bits(),
            };
            entries.insert(selected, of_line(*line, priority));
        }
    }
}

fn of_line(line: Line, priority: u32) -> Entry {
    of_number(line.class, priority)
}

fn of_number(number: u8, priority: u32) -> Entry {
    let action = match (number, Class::of_mark(number)) {
        (BYPASS, _) => Action::Allow,
        (_, Some((class, level))) => Action::Protect {
            reqid: reqid(class),
            optional: level == Level::Optional,
        },
        (_, None) => Action::Block,
    };
    Entry {
        priority,
        action: Some(action),
    }
}

fn everywhere() -> [IpNet; 2] {
    let ipv4 = IpNet::from(IpAddr::from(Ipv4Addr::UNSPECIFIED));
    let ipv6 = IpNet::from(IpAddr::from(Ipv6Addr::UNSPECIFIED));
    [ipv4, ipv6].map(|all| IpNet::new_assert(all.addr(), 0))
}

fn family(selected: &Selected) -> u16 {
    match selected.destination {
        IpNet::V4(_) => AF_INET,
        IpNet::V6(_) => AF_INET6,
    }
}

fn port_mask(port: Option<u16>) -> u16 {
    port.map_or(0, |_| u16::MAX)
}

fn selector(selected: &Selected) -> Selector {
    Selector {
        daddr: Address::from_ip(&selected.destination.addr()),
        prefixlen_d: selected.destination.prefix_len(),
        sport: selected.local_port.unwrap_or(0),
        sport_mask: port_mask(selected.local_port),
        dport: selected.remote_port.unwrap_or(0),
        dport_mask: port_mask(selected.remote_port),
        family: family(selected),
        ..Selector::default()
    }
}

fn mark(selected: &Selected) -> XfrmAttrs {
    XfrmAttrs::Mark(Mark {
        value: selected.mark,
        mask: selected.mark_bits,
    })
}

fn modification(selected: &Selected, entry: &Entry) -> ModifyMessage {
    let mut nlas = vec![mark(selected)];
    if let Some(Action::Protect { reqid, optional }) = entry.action {
        let mut template = UserTemplate {
            family: family(selected),
            reqid,
            mode: XFRM_MODE_TRANSPORT,
            optional: optional.into(),
            ..UserTemplate::default()
        };
        template.protocol(IPPROTO_ESP);
        nlas.push(XfrmAttrs::Template(vec![template]));
    }
    ModifyMessage {
        user_policy_info: UserPolicyInfo {
            selector: selector(selected),
            priority: entry.priority,
            direction: XFRM_POLICY_OUT,
            action: match entry.action {
                Some(Action::Block) => XFRM_POLICY_BLOCK,
                _ => XFRM_POLICY_ALLOW,
            },
            ..UserPolicyInfo::default()
        },
        nlas,
    }
}

/// The entry of a listed policy, if it is one of ours.
fn ours(policy: &ModifyMessage, mask: MarkMask) -> Option<(Selected, Entry)> {
    let info = &policy.user_policy_info;
    let mark = policy.nlas.iter().find_map(|attribute| match attribute {
        XfrmAttrs::Mark(mark) => Some(mark),
        _ => None,
    })?;
    let is_ours = info.direction == XFRM_POLICY_OUT
        && (FIRST..=LAST).contains(&info.priority)
        && [mask.class_bits(), mask.signature_bits()].contains(&mark.mask);
    if !is_ours {
        return None;
    }
    let addresses = address(&info.selector.daddr, info.selector.family)?;
    let port = |port: u16, mask: u16| (mask != 0).then_some(port);
    let selected = Selected {
        destination: IpNet::new(addresses, info.selector.prefixlen_d).ok()?,
        local_port: port(info.selector.sport, info.selector.sport_mask),
        remote_port: port(info.selector.dport, info.selector.dport_mask),
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
