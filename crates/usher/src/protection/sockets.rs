//! The live sockets of governed programs.

use std::collections::BTreeMap;

use nix::unistd::{Uid, User};
use serde::Serialize;
use usher_daemon::control::{ControlError, ask_daemon};
use usher_local::requests::{SaView, SocketView, Sockets, SocketsView, TreatmentView};
use usher_local::roles;

use crate::failure::Failure;
use crate::output::{or_dash, row, table};

/// Sockets, and how many there are.
#[derive(Debug, Default, Serialize)]
pub struct Listed {
    /// The live sockets of these programs, as many as `--sockets` says.
    sockets: Vec<Socket>,
    /// How many live sockets these programs have, counted up to 1,048,576; none: they are not listed.
    sockets_total: Option<u64>,
}

/// A live socket of a governed program, and its account.
#[derive(Debug, Serialize)]
struct Socket {
    /// The name of its account; none: it has none.
    user: Option<String>,
    #[serde(flatten)]
    view: SocketView,
}

/// Asks for at most `most` sockets, page by page.
///
/// # Errors
/// When the protector does not answer. A protector that cannot list them says so among its troubles.
pub fn list_sockets(most: u64) -> Result<Listed, Failure> {
    gather(most, |after, most| {
        ask_daemon(roles::Protector, &Sockets { after, most })
    })
}

fn gather(
    most: u64,
    mut ask: impl FnMut(u64, u64) -> Result<SocketsView, ControlError>,
) -> Result<Listed, Failure> {
    let mut listed = Listed::default();
    let mut users = BTreeMap::new();
    let mut next = Some(0);
    while let Some(after) = next {
        let left = most.saturating_sub(listed.sockets.len() as u64);
        if left == 0 {
            break;
        }
        let page = match ask(after, left.min(SocketsView::MOST)) {
            Err(ControlError::Refused { .. }) => break,
            page => page?,
        };
        listed.sockets_total = Some(page.total);
        next = page.next;
        let sockets = page.sockets.into_iter().map(|view| Socket {
            user: users
                .entry(view.uid)
                .or_insert_with(|| account_name(view.uid))
                .clone(),
            view,
        });
        listed.sockets.extend(sockets);
    }
    Ok(listed)
}

fn account_name(uid: u32) -> Option<String> {
    let user = User::from_uid(Uid::from_raw(uid)).ok().flatten();
    user.map(|user| user.name)
}

impl Listed {
    /// For people; empty if there are none.
    pub fn text(&self) -> String {
        let Some(total) = self.sockets_total.filter(|total| *total > 0) else {
            return String::new();
        };
        let heading = [
            "PROGRAM",
            "USER",
            "PROCESS",
            "SOCKET",
            "LOCAL",
            "PEER",
            "TREATMENT",
            "SPI OUT",
            "BYTES OUT",
            "SPI IN",
            "BYTES IN",
            "BY",
        ];
        let mut text = format!("\n{}", table(heading, self.sockets.iter().map(cells)));
        let shown = self.sockets.len() as u64;
        if shown < total {
            let rest = total - shown;
            text += &format!("and {rest} more: --sockets {total} shows all\n");
        }
        text
    }
}

fn cells(socket: &Socket) -> [String; 12] {
    let view = &socket.view;
    let spi = |sa: &Option<SaView>| or_dash(sa.as_ref().map(|sa| &sa.spi));
    let bytes = |sa: &Option<SaView>| or_dash(sa.as_ref().map(|sa| sa.bytes));
    let user = socket.user.clone();
    let user = user.unwrap_or_else(|| view.uid.to_string());
    let process = match view.holders {
        0 | 1 => view.process.to_string(),
        holders => format!("{} and {} more", view.process, holders - 1),
    };
    let kind = match &view.state {
        Some(state) => format!("{} {state}", view.protocol),
        None => view.protocol.clone(),
    };
    row![
        view.program,
        user,
        process,
        kind,
        view.local,
        or_dash(view.peer),
        treatment(&view.treatment),
        spi(&view.sa_out),
        bytes(&view.sa_out),
        spi(&view.sa_in),
        bytes(&view.sa_in),
        or_dash(view.line.as_ref()),
    ]
}

fn treatment(treatment: &TreatmentView) -> String {
    match treatment {
        TreatmentView::EachPacket => "each packet's own".into(),
        TreatmentView::Bypass => "without protection".into(),
        TreatmentView::Discard => "discarded".into(),
        TreatmentView::Protect { class, level } => format!("{class} {level}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn socket(cookie: u64) -> SocketView {
        SocketView {
            cookie,
            program: "/usr/bin/ftp".into(),
            uid: 0,
            process: 7,
            holders: 1,
            protocol: "tcp".into(),
            state: Some("established".into()),
            local: "10.1.0.1:4000".parse().unwrap(),
            peer: Some("10.1.0.2:21".parse().unwrap()),
            treatment: TreatmentView::Protect {
                class: "encryption".into(),
                level: "mandatory".into(),
            },
            line: Some("a.policy:6:5".into()),
            sa_out: Some(SaView {
                spi: "0000abcd".into(),
                bytes: 1234,
                since: 1,
            }),
            sa_in: None,
        }
    }

    /// Answers as the protector does, of so many sockets.
    fn protector(total: u64, after: u64, most: u64) -> SocketsView {
        assert!(most <= SocketsView::MOST);
        let last = total.min(after + most);
        SocketsView {
            sockets: (after + 1..=last).map(socket).collect(),
            total,
            next: (last < total).then_some(last),
        }
    }

    #[test]
    fn a_hundred_thousand_sockets_come_in_pages() {
        for (total, most, expected) in [
            (100_000, u64::MAX, 100_000),
            (100_000, 5_000, 5_000),
            (4_096, u64::MAX, 4_096),
            (3, 50, 3),
            (0, 50, 0),
        ] {
            let listed = gather(most, |after, most| Ok(protector(total, after, most))).unwrap();
            let cookies = listed.sockets.iter().map(|socket| socket.view.cookie);
            assert!(cookies.eq(1..=expected), "{total} {most}");
            assert_eq!(listed.sockets_total, Some(total));
        }
    }

    #[test]
    fn a_line_names_the_sa_and_the_statement() {
        let listed = gather(1, |after, most| Ok(protector(2, after, most))).unwrap();
        let told = listed.text();
        let line = told.lines().nth(2).unwrap();
        let words: Vec<&str> = line.split_whitespace().collect();
        let expected = [
            "/usr/bin/ftp",
            "root",
            "7",
            "tcp",
            "established",
            "10.1.0.1:4000",
            "10.1.0.2:21",
            "encryption",
            "mandatory",
            "0000abcd",
            "1234",
            "-",
            "-",
            "a.policy:6:5",
        ];
        assert_eq!(words, expected);
        assert!(told.ends_with("and 1 more: --sockets 2 shows all\n"));
    }

    #[test]
    fn sockets_are_the_same_for_programs_and_people() {
        let listed = gather(1, |after, most| Ok(protector(1, after, most))).unwrap();
        let json = serde_json::to_value(&listed).unwrap();
        let socket = &json["sockets"][0];
        assert_eq!(socket["treatment"], "protect");
        assert_eq!(socket["class"], "encryption");
        assert_eq!(socket["sa_out"]["spi"], "0000abcd");
        let read: SocketView = serde_json::from_value(socket.clone()).unwrap();
        assert_eq!(read, listed.sockets[0].view);
    }
}
