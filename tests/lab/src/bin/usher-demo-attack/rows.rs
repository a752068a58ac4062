//! The rows, with what documentation and program expect. A cell is `R`, `.` or `-`, in the order of the
//! columns: plain, plain + bsdextended, netAuth, netAuth + IPsec, netAuth + bsdextended, netAuth + biba, all.

use crate::table::Row;

/// The rows.
pub(crate) const ROWS: &[Row] = &[
    Row::new(
        "work: alice's mbsync fetches her mail and uploads what she wrote",
        "RRRRRRR",
    ),
    Row::new("work: bob reads his mail", "RRRRRRR"),
    Row::new("read alice's mail", "RR....."),
    Row::new("delete alice's mail", "RR....."),
    Row::new("forge a message in alice's mailbox", "RR....."),
    Row::new("read alice's mail in the memory of her imap", "......."),
    Row::new("end alice's imap", "RR....."),
    Row::new("read alice's mail on the wire", "RRR.RR."),
    Row::new(
        "log in as alice from another host, by playing back what she sent",
        "RR.....",
    ),
    Row::new("slip a command into alice's connection", "RRR.RR."),
    Row::new("cut alice's connection from the wire", "RRR.RR."),
    Row::new(
        "read a backup of alice's mail that was left readable for all",
        "R.RR.R.",
    ),
    Row::new(
        "become root by a set-user-ID program with a hole",
        "R......",
    ),
    Row::new(
        "change a program that the administrator runs, left writable for all",
        "R.RR...",
    ),
    Row::new(
        "have root's nightly job run commands, by settings among bob's mail",
        "RRRRR..",
    ),
    Row::new(
        "read /etc/shadow and the private keys of the host, the service and Usher",
        ".......",
    ),
    Row::new("forge a log-in of alice's in the log of log-ins", "RR....."),
    Row::new(
        "end Usher, or take its programs out of the kernel",
        "--.....",
    ),
    Row::new(
        "come back by ssh: a key in the account's authorized_keys",
        "RRRRR..",
    ),
    Row::new("come back by cron: a table of the account", "R......"),
    Row::new(
        "run on after the administrator has locked bob out",
        "RR.....",
    ),
    Row::new("connect to another host's database", "RR....."),
    Row::new("open a back door at a port of its own", "RRRRRRR"),
    Row::new(
        "read what is readable for all, such as /etc/passwd",
        "RRRRRRR",
    ),
    Row::new("read bob's own mail", "RRRRRRR"),
];

/// What no part stops.
pub(crate) const REMAINS: &str = "With all parts an attacker who has taken over bob's imap still has bob's own mail, reads \
    what the system leaves readable for all, and opens a port of its own, until bob is locked out.";
