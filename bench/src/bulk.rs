//! Measures throughput of connections, compared to plain TCP.

use std::error::Error;

use usher_lab::{ALICE, Lab};

use crate::report::Row;
use crate::{SERVER, columns};

const PLAIN: &str = "7005";
const MEGABYTES: &str = "256";
/// Connections at once, and rounds of them: each has the same number of bytes in all.
const CROWDS: [(&str, &str); 2] = [("10", "5"), ("1000", "3")];

const SERVICE: &str = r#"
service bulk {
  program "/run/lab/bin/usher-bench-server" "bulk";
  listen 7006;
  style user;
  users mail;
  hosts laptop;
}
"#;
/// The proxy serves this service at mailhost's loopback address.
const CLIENT: &str = "client bulk { users mail; service bulk at mailhost port 7006; }\n";

/// Measures as alice, from the first byte on, at the client.
pub fn measure(rounds: usize) -> Result<Vec<Row>, Box<dyn Error>> {
    eprintln!("making two hosts ...");
    let mail = Lab::mail()?;
    mail.add_policies("bulk", SERVICE, CLIENT)?;
    let _plain = mail.mailhost.spawn([SERVER, "bulk", PLAIN])?;
    let address = mail.mailhost.ipv4().to_string();
    let client = |crowd: &str, rounds: &str| {
        mail.laptop
            .command([
                "usher-bench-bulk",
                &address,
                PLAIN,
                "127.0.1.1:7006",
                "mailhost",
                "bulk",
                MEGABYTES,
                crowd,
                rounds,
            ])
            .user(ALICE.name)
    };
    let rate = |name: &str, samples| Row::in_unit(name, "MB/s", samples);
    eprintln!("{MEGABYTES} MB a connection: {rounds} rounds of four ...");
    let [plain, direct, proxy, connect] = columns(client("1", &rounds.to_string()))?;
    let single = Row::relate(
        [
            rate("bulk/plain", plain),
            rate("bulk/usher_direct", direct),
            rate("bulk/usher_proxy", proxy),
            rate("bulk/usher_connect", connect),
        ],
        "bulk/plain",
    );
    let mut rows = Vec::from(single);
    for (crowd, rounds) in CROWDS {
        eprintln!("{MEGABYTES} MB through {crowd} connections at once: {rounds} rounds of two ...");
        let [plain, proxy] = columns(client(crowd, rounds))?;
        let base = format!("bulk/plain_{crowd}");
        rows.extend(Row::relate(
            [
                rate(&base, plain),
                rate(&format!("bulk/usher_proxy_{crowd}"), proxy),
            ],
            &base,
        ));
    }
    Ok(rows)
}
