//! Live sockets of governed programs, as the kernel's iterator reports them.

use std::collections::{BTreeMap, HashSet};
use std::net::{IpAddr, Ipv6Addr, SocketAddr};

use usher_bpf::executables::{PlaceId, ProgramId, ScriptId};
use usher_protection::{Class, Level, ProgramName};

use crate::marks::{BYPASS, DISCARD};
use crate::programs::Maker;
pub(crate) use crate::shared::LiveSocket as Row;
use crate::shared::{UNHELD_FULL, UNHELD_KIND, UNHELD_MARK, UNHELD_SEGMENTS};

/// How the packets of a socket are treated.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LiveTreatment {
    /// Each packet by its own addresses and ports: a listener, a datagram socket, or a connection
    /// that has carried nothing since the policy came in force.
    EachPacket,
    /// Without protection.
    Bypass,
    /// They are dropped.
    Discard,
    /// By this class.
    Protect(Class, Level),
}

/// Limit of sockets that are counted.
const MOST_COUNTED: usize = 1 << 20;

/// A socket that a governed program holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LiveSocket {
    /// The kernel's number of it, which no other socket ever has; `ss -e` shows it as `sk`.
    pub cookie: u64,
    /// Its own end; unspecified address: any.
    pub local: SocketAddr,
    /// Its peer; none: it is not connected.
    pub remote: Option<SocketAddr>,
    /// IPPROTO_TCP, IPPROTO_UDP, ...
    pub protocol: u16,
    /// The state of a TCP socket, by the kernel's number (include/net/tcp_states.h).
    pub state: u8,
    /// A process that holds it, in the initial namespace.
    pub process: u32,
    /// The number of processes that hold it.
    pub holders: u32,
    /// The user that the socket belongs to, in the initial namespace.
    pub uid: u32,
    /// An index of [`usher_protection::Tables::applications`] of the tables in force.
    pub application: u32,
    /// The program that made it, as the policy names it; none if it runs from a file that the policy
    /// does not name any more, in a place that it does not name either.
    pub program: Option<ProgramName>,
    /// The treatment of its packets, as far as it is known.
    pub treatment: LiveTreatment,
    /// The socket's mark.
    pub mark: u32,
}

/// The reason that sockets are not treated as the policy says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum UnheldReason {
    /// Sockets of MPTCP, SCTP or SMC, packet sockets, and others whose packets no program of a control
    /// group sees. Where LSM programs run, calls on them are refused.
    Kind,
    /// The kernel has no room for an entry.
    Full,
    /// Datagram sockets that were connected before, and have another mark than that of their class. What
    /// must not be plain is refused.
    Mark,
    /// Datagram sockets with UDP_SEGMENT, by which protected datagrams cannot leave.
    Segments,
}

/// Sockets of a process of a governed program that are not treated as the policy says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Unheld {
    /// The process, in the initial namespace.
    pub process: u32,
    /// Its program, as the policy names it; none: see [`LiveSocket::program`].
    pub program: Option<ProgramName>,
    /// The reason.
    pub reason: UnheldReason,
    /// The number of these sockets.
    pub sockets: usize,
}

/// Limit of processes whose sockets are named. Users choose how many there are.
const MOST_UNHELD: usize = 64;

/// Gathers sockets that are not treated as the policy says, by process and reason.
#[derive(Default)]
pub(crate) struct GatheringUnheld(BTreeMap<(u32, UnheldReason), (Maker, usize)>);

impl GatheringUnheld {
    /// Takes what the kernel reports of one process that holds a socket.
    pub fn take(&mut self, row: &Row) {
        let reason = match row.unheld {
            UNHELD_KIND => UnheldReason::Kind,
            UNHELD_FULL => UnheldReason::Full,
            UNHELD_MARK => UnheldReason::Mark,
            UNHELD_SEGMENTS => UnheldReason::Segments,
            _ => return,
        };
        let key = (row.process, reason);
        if self.0.len() < MOST_UNHELD || self.0.contains_key(&key) {
            self.0.entry(key).or_insert((maker(row), 0)).1 += 1;
        }
    }

    /// The processes. `name` names makers.
    pub fn named(self, name: impl Fn(Maker) -> Option<ProgramName>) -> Vec<Unheld> {
        let gathered = self.0.into_iter();
        let named = gathered.map(|((process, reason), (maker, sockets))| Unheld {
            process,
            program: name(maker),
            reason,
            sockets,
        });
        named.collect()
    }
}

fn maker(row: &Row) -> Maker {
    Maker {
        script: ScriptId::new(row.script.script),
        place_of_script: PlaceId::new(row.script.place),
        program: ProgramId::new(row.program),
        place: PlaceId::new(row.place),
    }
}

/// A part of the live sockets.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LivePage {
    /// By their cookies: a socket that lives while all pages are asked for is in one of them.
    pub sockets: Vec<LiveSocket>,
    /// The number of all live sockets; at most 1,048,576 are counted.
    pub total: usize,
    /// The next page begins after this cookie; none: this is the last page.
    pub next: Option<u64>,
}

/// Gathers a page. Its memory has a limit, however many sockets and processes there are.
pub(crate) struct Gathering {
    after: u64,
    most: usize,
    /// With the number of processes that hold them, and the last of these.
    found: BTreeMap<u64, (Row, u32, u32)>,
    counted: HashSet<u64>,
    cut: bool,
}

impl Gathering {
    /// The page of at most so many sockets, but at least one, after this cookie.
    pub fn new(after: u64, most: usize) -> Self {
        Self {
            after,
            most: most.max(1),
            found: BTreeMap::new(),
            counted: HashSet::new(),
            cut: false,
        }
    }

    /// Takes what the kernel reports of one process that holds a socket. The rows of a process come
    /// together, but one socket may come several times among them.
    pub fn take(&mut self, row: Row) {
        let cookie = row.cookie;
        if self.counted.len() < MOST_COUNTED {
            self.counted.insert(cookie);
        }
        if cookie <= self.after {
            return;
        }
        let process = row.process;
        let (_, holders, last) = self.found.entry(cookie).or_insert((row, 0, 0));
        if *holders == 0 || *last != process {
            *holders += 1;
            *last = process;
        }
        if self.found.len() > self.most {
            self.found.pop_last();
            self.cut = true;
        }
    }

    /// The page. `name` names makers.
    pub fn page(self, name: impl Fn(Maker) -> Option<ProgramName>) -> LivePage {
        let last = self.found.keys().next_back().copied();
        let sockets = self.found.into_values().map(|(row, holders, _)| {
            let program = name(maker(&row));
            socket(row, holders, program)
        });
        LivePage {
            sockets: sockets.collect(),
            total: self.counted.len(),
            next: last.filter(|_| self.cut),
        }
    }
}

fn socket(row: Row, holders: u32, program: Option<ProgramName>) -> LiveSocket {
    let address = |bytes: [u8; 16]| IpAddr::from(Ipv6Addr::from(bytes)).to_canonical();
    let local = SocketAddr::new(address(row.local_address), row.local_port);
    let remote = SocketAddr::new(address(row.remote_address), row.remote_port);
    let class = u8::try_from(row.class).unwrap_or(DISCARD);
    LiveSocket {
        cookie: row.cookie,
        local,
        remote: (row.remote_port != 0).then_some(remote),
        protocol: row.protocol,
        state: row.state,
        process: row.process,
        holders,
        uid: row.uid,
        application: row.application,
        program,
        treatment: match (class, Class::of_mark(class)) {
            (0, _) => LiveTreatment::EachPacket,
            (BYPASS, _) => LiveTreatment::Bypass,
            (_, Some((class, level))) => LiveTreatment::Protect(class, level),
            (_, None) => LiveTreatment::Discard,
        },
        mark: row.mark,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use usher_bpf::Plain;

    fn row(cookie: u64, process: u32) -> Row {
        Row {
            cookie,
            process,
            ..Row::zeroed()
        }
    }

    /// All pages of so many sockets.
    fn pages(rows: &[u64], most: usize) -> Vec<Vec<(u64, u32)>> {
        let (mut pages, mut after) = (Vec::new(), Some(0));
        while let Some(cookie) = after {
            let mut gathering = Gathering::new(cookie, most);
            for (cookie, process) in rows.iter().zip(0..) {
                gathering.take(row(*cookie, process));
                gathering.take(row(*cookie, process));
            }
            let page = gathering.page(|_| None);
            assert_eq!(page.total, rows.iter().collect::<HashSet<_>>().len());
            let sockets = page.sockets.iter().map(|one| (one.cookie, one.holders));
            pages.push(sockets.collect());
            after = page.next;
        }
        pages
    }

    #[test]
    fn sockets_that_are_not_held_are_counted_by_process() {
        let mut gathering = GatheringUnheld::default();
        for process in 1..100 {
            for unheld in [0, UNHELD_KIND, UNHELD_KIND] {
                let mut row = row(1, process);
                row.unheld = unheld;
                gathering.take(&row);
            }
        }
        let unheld = gathering.named(|_| None);
        assert_eq!(unheld.len(), MOST_UNHELD);
        let is_counted = |one: &Unheld| (one.reason, one.sockets) == (UnheldReason::Kind, 2);
        assert!(unheld.iter().all(is_counted), "{unheld:?}");
    }

    #[test]
    fn every_socket_is_in_one_page() {
        let rows = [7, 3, 9, 3, 1, 7, 3];
        assert_eq!(
            pages(&rows, 3),
            [vec![(1, 1), (3, 3), (7, 2)], vec![(9, 1)]]
        );
        assert_eq!(pages(&rows, 4).len(), 1);
        // A page of none would never end.
        assert_eq!(pages(&rows, 0).len(), 4);
        assert_eq!(pages(&[], 3), [vec![]]);
    }
}
