//! Live sockets of governed programs, for an administrator.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use usher_daemon::clock::unix_time;
use usher_ipsec::{Ipsec, IpsecError, LiveSocket, LiveTreatment, Sa, Sas, Visit};
use usher_local::requests::{SaView, SocketView, SocketsView, TreatmentView};
use usher_policy::Policy;
use usher_policy::protection::{Deciding, Names, Traffic};

use super::finding::{PART, REST};
use super::force::Force;
use super::state::State;

/// The states of TCP by the kernel's numbers, in the words of ss(8).
const STATES: [&str; 13] = [
    "unknown",
    "established",
    "syn-sent",
    "syn-recv",
    "fin-wait-1",
    "fin-wait-2",
    "time-wait",
    "unconnected",
    "close-wait",
    "last-ack",
    "listening",
    "closing",
    "syn-recv",
];

const TCP: u16 = 6;
const UDP: u16 = 17;

impl Force {
    /// A page of the live sockets of governed programs, by the policy in force at its end.
    ///
    /// # Errors
    /// When the kernel's state cannot be read.
    pub(super) async fn sockets(&self, after: u64, most: u64) -> Result<SocketsView, IpsecError> {
        let most = usize::try_from(most.min(SocketsView::MOST)).unwrap_or(usize::MAX);
        loop {
            let begun = {
                let state = self.state.lock();
                let (Some(ipsec), Some(policy)) = (&state.ipsec, &state.configuration) else {
                    return Ok(SocketsView::default());
                };
                (ipsec.begin_page(after, most)?, Arc::clone(policy))
            };
            let (mut visit, configuration) = begun;
            while !self.visit_some(&mut visit)? {
                tokio::time::sleep(REST).await;
            }
            let mut state = self.state.lock();
            let State {
                ipsec,
                configuration: present,
                answers,
                ..
            } = &mut *state;
            let (Some(ipsec), Some(present)) = (ipsec, present) else {
                return Ok(SocketsView::default());
            };
            // The visit numbers applications by its policy, so the policy must not have changed. Names that
            // got other addresses change no number.
            if Arc::ptr_eq(&configuration, present) {
                let names = answers.names(unix_time());
                return page(ipsec, &present.checked.policy, &names, visit);
            }
        }
    }

    /// Continues a visit for a short time. Returns whether it is complete.
    fn visit_some(&self, visit: &mut Visit) -> Result<bool, IpsecError> {
        let mut state = self.state.lock();
        let Some(ipsec) = &mut state.ipsec else {
            return Ok(true);
        };
        let (adopted, is_complete) = ipsec.go_on(visit, PART)?;
        state.note_adopted(adopted);
        Ok(is_complete)
    }
}

/// The page of a complete visit: see [`usher_local::requests::Sockets`]. `policy` is the one in force, and
/// `names` has the addresses of its names.
fn page(
    ipsec: &mut Ipsec,
    policy: &Policy,
    names: &Names,
    visit: Visit,
) -> Result<SocketsView, IpsecError> {
    let page = ipsec.page(visit);
    let sas = ipsec.sas()?;
    let mut deciding = BTreeMap::new();
    let mut sockets = Vec::with_capacity(page.sockets.len());
    for socket in &page.sockets {
        let number = socket.application;
        // The monitor works by this policy's tables, so the number has a block.
        let Some(block) = policy.applications.get(number as usize) else {
            continue;
        };
        let deciding = deciding
            .entry(number)
            .or_insert_with(|| block.deciding(names));
        let program = match &socket.program {
            Some(program) => program.to_string(),
            None => block.name(),
        };
        let head = block.origin.place.to_string();
        sockets.push(view(socket, program, head, deciding, &sas));
    }
    Ok(SocketsView {
        sockets,
        total: page.total as u64,
        next: page.next,
    })
}

fn view(
    socket: &LiveSocket,
    program: String,
    head: String,
    deciding: &Deciding<'_>,
    sas: &Sas,
) -> SocketView {
    let (treatment, line) = match socket.remote {
        Some(peer) => connected(socket, peer, deciding),
        None => (socket.treatment, Some(head)),
    };
    let class = match treatment {
        LiveTreatment::Protect(class, _) => Some(class),
        _ => None,
    };
    let (own, peer) = (socket.local.ip(), socket.remote.map(|peer| peer.ip()));
    let ends = class.zip(peer);
    let sa_out = ends.and_then(|(class, peer)| sas.between(own, peer, class));
    let sa_in = ends.and_then(|(class, peer)| sas.between(peer, own, class));
    SocketView {
        cookie: socket.cookie,
        program,
        uid: socket.uid,
        process: socket.process,
        holders: socket.holders,
        protocol: match socket.protocol {
            TCP => "tcp".into(),
            UDP => "udp".into(),
            other => other.to_string(),
        },
        state: (socket.protocol == TCP).then(|| state(socket.state).into()),
        local: socket.local,
        peer: socket.remote,
        treatment: treatment_view(treatment),
        line,
        sa_out: sa_out.map(sa_view),
        sa_in: sa_in.map(sa_view),
    }
}

/// The treatment of a connected socket, and the statement that decides. Before the first packet the kernel
/// has not determined the treatment; the policy says which one it will be.
fn connected(
    socket: &LiveSocket,
    peer: SocketAddr,
    deciding: &Deciding<'_>,
) -> (LiveTreatment, Option<String>) {
    let (traffic, origin) = deciding.traffic(peer.ip(), socket.local.port(), peer.port());
    let line = origin.map(|origin| origin.place.to_string());
    let treatment = match (socket.treatment, traffic) {
        (LiveTreatment::EachPacket, Traffic::Bypass) => LiveTreatment::Bypass,
        (LiveTreatment::EachPacket, Traffic::Discard) => LiveTreatment::Discard,
        (LiveTreatment::EachPacket, Traffic::Protect(item)) => {
            LiveTreatment::Protect(item.class(), item.level)
        }
        (known, _) => known,
    };
    (treatment, line)
}

fn state(number: u8) -> &'static str {
    STATES.get(usize::from(number)).unwrap_or(&STATES[0])
}

fn treatment_view(treatment: LiveTreatment) -> TreatmentView {
    match treatment {
        LiveTreatment::EachPacket => TreatmentView::EachPacket,
        LiveTreatment::Bypass => TreatmentView::Bypass,
        LiveTreatment::Discard => TreatmentView::Discard,
        LiveTreatment::Protect(class, level) => TreatmentView::Protect {
            class: class.name().into(),
            level: level.to_string(),
        },
    }
}

fn sa_view(sa: Sa) -> SaView {
    SaView {
        spi: format!("{:08x}", sa.spi),
        bytes: sa.bytes,
        since: sa.since,
    }
}
