//! packaging/wireshark/usher.lua: what tshark shows of connections with Usher, and of options that are
//! no tokens.
#![forbid(unsafe_code)]

mod greeter;

use std::collections::HashSet;

use greeter::{Result, connect, has_ticket, topology};
use usher_lab::capture::{Capture, frames};
use usher_lab::hostile::{ALPN, Channel, Identity, dial};
use usher_lab::{Host, Lab, Role};

const SCRIPT: &str = include_str!("../../../packaging/wireshark/usher.lua");
const SCRIPT_PATH: &str = "/var/lib/usher.lua";

const GREETER_PORT: u16 = 7000;
const CONTROL_PORT: u16 = 3440;

/// Reads captures as alice: Wireshark 4.4 loads no scripts of root's.
struct Reader<'a>(&'a Host);

impl<'a> Reader<'a> {
    /// For a host on which alice has an account.
    fn on(host: &'a Host) -> Result<Self> {
        host.write(SCRIPT_PATH, SCRIPT)?;
        Ok(Self(host))
    }

    /// The output of tshark about a capture, with these arguments. None of it is an error of the script.
    fn print(&self, capture: &[u8], arguments: &[&str]) -> Result<String> {
        let script = format!("lua_script:{SCRIPT_PATH}");
        let words = ["tshark", "-X", &script, "-nr", "-"];
        let tshark = self.0.command(words.iter().chain(arguments));
        let printed = tshark.user("alice").input(capture).succeed()?;
        for text in [&printed.stdout, &printed.stderr] {
            assert!(!text.to_lowercase().contains("lua"), "{text}");
        }
        Ok(printed.stdout)
    }

    /// These fields of the packets that a filter selects.
    fn fields(&self, capture: &[u8], filter: &str, names: &[&str]) -> Result<Vec<Vec<String>>> {
        let mut arguments = vec!["-Y", filter, "-T", "fields"];
        arguments.extend(names.iter().flat_map(|name| ["-e", name]));
        let printed = self.print(capture, &arguments)?;
        let lines = printed.lines();
        Ok(lines
            .map(|line| line.split('\t').map(str::to_owned).collect())
            .collect())
    }
}

/// A SYN, read without Wireshark.
struct Syn {
    source: u16,
    destination: u16,
    /// The last 16 bytes of the token option.
    token: Option<[u8; 16]>,
}

impl Syn {
    /// None if the frame is another packet.
    fn of(frame: &[u8]) -> Option<Self> {
        let header = match frame.get(12..14)? {
            [0x08, 0x00] if *frame.get(23)? == 6 => 14 + usize::from(frame[14] & 15) * 4,
            [0x86, 0xdd] if *frame.get(20)? == 6 => 14 + 40,
            _ => return None,
        };
        let tcp = frame.get(header..)?;
        // SYN without ACK.
        if tcp.get(13)? & 0x12 != 2 {
            return None;
        }
        let port = |at: usize| u16::from_be_bytes([tcp[at], tcp[at + 1]]);
        let options = tcp.get(20..usize::from(tcp[12] >> 4) * 4)?;
        let option = options
            .windows(20)
            .find(|bytes| bytes.starts_with(&[253, 20, 0x55, 0x73]));
        Some(Self {
            source: port(0),
            destination: port(2),
            token: option.and_then(|option| option[4..].try_into().ok()),
        })
    }

    /// The fields that tshark should print of it: source port, slot, position, masked element.
    fn fields(&self) -> Vec<String> {
        let Some(token) = self.token else {
            let source = self.source.to_string();
            return vec![source, String::new(), String::new(), String::new()];
        };
        let slot = u32::from_be_bytes([0, token[0], token[1], token[2]]);
        let masked = token[4..].iter().map(|byte| format!("{byte:02x}"));
        vec![
            self.source.to_string(),
            slot.to_string(),
            token[3].to_string(),
            masked.collect(),
        ]
    }
}

#[test]
fn tokens_are_shown_as_they_were_sent() -> Result {
    let mail = topology()?;
    let reader = Reader::on(&mail.laptop)?;
    let capture = Capture::start(&mail.mailhost)?;
    // Each user's first is announced, two of hers are by token.
    connect(&mail, "bob", 1, 1)?;
    has_ticket(&mail, 1)?;
    connect(&mail, "alice", 1, 1)?;
    has_ticket(&mail, 2)?;
    connect(&mail, "alice", 1, 2)?;
    assert_eq!(mail.mailhost.number(Role::Keeper, "token_accepted")?, 2);
    let capture = capture.end(&mail.laptop)?;

    let syns = frames(&capture)?.into_iter().filter_map(Syn::of);
    let syns: Vec<Syn> = syns.filter(|syn| syn.destination == GREETER_PORT).collect();
    let tokens: HashSet<[u8; 16]> = syns.iter().filter_map(|syn| syn.token).collect();
    assert_eq!(tokens.len(), 2, "the SYNs have other tokens");
    assert!(syns.iter().any(|syn| syn.token.is_none()));

    let filter = format!("tcp.dstport == {GREETER_PORT} && tcp.flags & 0x12 == 2");
    let names = [
        "tcp.srcport",
        "usher.token.slot",
        "usher.token.position",
        "usher.token.masked",
    ];
    let shown = reader.fields(&capture, &filter, &names)?;
    let sent: Vec<_> = syns.iter().map(Syn::fields).collect();
    assert_eq!(shown, sent);
    // The keeper has logged the slots of sessions.
    let log = mail.keeper.log()?;
    let mut lines = log.lines();
    let line =
        lines.find(|line| line.contains("tokens are accepted") && line.contains("user=alice"));
    let slot = line
        .and_then(|line| line.rsplit_once("slot="))
        .ok_or("no slot")?
        .1;
    let slots: HashSet<&String> = shown.iter().map(|fields| &fields[1]).collect();
    assert_eq!(slots, HashSet::from([&String::new(), &slot.to_owned()]));

    // No other packet has one, and the list of packets shows them.
    let listed = reader.print(&capture, &["-Y", "usher.token"])?;
    let with_token = syns.iter().filter(|syn| syn.token.is_some());
    let with_token: Vec<_> = with_token.map(Syn::fields).collect();
    assert_eq!(listed.lines().count(), with_token.len(), "{listed}");
    for (line, fields) in listed.lines().zip(with_token) {
        let shown = format!("[Usher token slot={} position={}]", fields[1], fields[2]);
        assert!(line.ends_with(&shown), "{line}");
    }
    Ok(())
}

/// A client with the right protocol that asks for a certificate.
const WITHOUT_RAW_KEYS: &str = "
import socket, ssl, sys
settings = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
settings.check_hostname = False
settings.verify_mode = ssl.CERT_NONE
settings.maximum_version = ssl.TLSVersion.VERSION
settings.set_alpn_protocols(['usher/1'])
try:
    settings.wrap_socket(socket.create_connection((sys.argv[1], 3440)))
except ssl.SSLError:
    print('refused')
";

#[test]
fn the_offer_of_a_control_channel_is_shown() -> Result {
    let mut mail = topology()?;
    let reader = Reader::on(&mail.laptop)?;
    let capture = Capture::start(&mail.mailhost)?;
    mail.courier.restart()?;
    connect(&mail, "alice", 1, 1)?;
    // A stranger's key is not seen; another protocol is, and so are certificates and an old version.
    let server = (mail.mailhost.ipv4(), CONTROL_PORT).into();
    for protocol in [ALPN, b"usher/2"] {
        let stream = dial(&mail.stranger, server)?;
        let outcome = Channel::open(stream, &Identity::fresh(), protocol);
        assert!(outcome.and_then(|mut channel| channel.ping()).is_err());
    }
    for version in ["TLSv1_3", "TLSv1_2"] {
        let script = WITHOUT_RAW_KEYS.replace("VERSION", version);
        let python = ["python3", "-c", &script, &mail.mailhost.ipv4().to_string()];
        assert_eq!(mail.stranger.run(python)?.stdout, "refused\n");
    }
    let capture = capture.end(&mail.laptop)?;

    let names = [
        "ip.src",
        "tcp.dstport",
        "usher.channel.from_client",
        "usher.channel.alpn",
        "usher.channel.refused",
        "_ws.expert.message",
        "tls.app_data",
    ];
    let shown = reader.fields(&capture, "usher.channel", &names)?;
    let stranger = mail.stranger.ipv4().to_string();
    let mut offers = Vec::new();
    let mut encrypted = HashSet::new();
    for fields in &shown {
        let [source, port, from_client, offer, refused, messages, data] = &fields[..] else {
            return Err(format!("{fields:?}").into());
        };
        // 1 and 0 before Wireshark 4.2.
        let from_client = ["1", "True"].contains(&&**from_client);
        assert_eq!(from_client, *port == CONTROL_PORT.to_string());
        if !offer.is_empty() {
            let missing = messages.split_once("does not offer ").unwrap_or_default().1;
            assert_eq!(refused.is_empty(), missing.is_empty(), "{messages}");
            offers.push((*source == stranger, offer.as_str(), missing));
        }
        if !data.is_empty() {
            encrypted.insert(from_client);
        }
    }
    let (strangers, laptops): (Vec<_>, Vec<_>) = offers.into_iter().partition(|offer| offer.0);
    let expected = [
        (true, "usher/1", ""),
        (true, "usher/2", "the protocol usher/1"),
        (true, "usher/1", "raw public keys"),
        (true, "usher/1", "TLS 1.3, raw public keys"),
    ];
    assert_eq!(strangers, expected);
    // By IPv6 as well, if that answers late.
    assert!(!laptops.is_empty());
    let good = (false, "usher/1", "");
    assert!(laptops.iter().all(|offer| *offer == good), "{laptops:?}");
    // All that follows is encrypted, in both directions.
    assert_eq!(encrypted.len(), 2);
    Ok(())
}

/// A token with the slot 66051 and the position 4, of docs/PROTOCOL.md.
const TOKEN: [u8; 20] = [
    253, 20, 0x55, 0x73, 1, 2, 3, 4, 0xe7, 0xfc, 0x9a, 0xbd, 0xb6, 0x44, 0x1d, 0x57, 0xc5, 0x28,
    0x24, 0x63,
];

/// A SYN in a file of libpcap's, with the words that its TCP header claims to have.
fn syn(options: &[u8], words: u8) -> Vec<u8> {
    let mut frame = vec![2; 12];
    frame.extend([0x08, 0x00]);
    let size = u8::try_from(20 + 20 + options.len()).unwrap_or(u8::MAX);
    frame.extend([0x45, 0, 0, size, 0, 1, 0, 0, 64, 6, 0, 0]);
    frame.extend([10, 77, 0, 1, 10, 77, 0, 2]);
    frame.extend([0x9c, 0x40, 0x1b, 0x58, 0, 0, 0, 1, 0, 0, 0, 0]);
    frame.extend([words << 4, 2, 0xfa, 0xf0, 0, 0, 0, 0]);
    frame.extend(options);
    frame
}

/// A file of libpcap's with these frames, of which the first so many bytes were captured.
fn file(frames: &[(Vec<u8>, usize)]) -> Vec<u8> {
    let word = |number: usize| u32::try_from(number).unwrap_or(u32::MAX).to_le_bytes();
    let mut file = Vec::new();
    file.extend(0xa1b2_c3d4_u32.to_le_bytes());
    // Version 2.4, time zone, accuracy, longest packet, Ethernet.
    file.extend([2, 0, 4, 0]);
    file.extend([0, 0, 65_535, 1].map(word).concat());
    for (frame, captured) in frames {
        let captured = (*captured).min(frame.len());
        file.extend([0, 0, captured, frame.len()].map(word).concat());
        file.extend(&frame[..captured]);
    }
    file
}

const WHOLE: usize = usize::MAX;

/// A host with alice, and no Usher.
fn reading_host(lab: &Lab) -> Result<Host> {
    let host = lab.host("reader")?;
    host.add_account("alice", 1001)?;
    Ok(host)
}

#[test]
fn an_option_that_is_no_whole_token_is_shown_as_such() -> Result {
    let lab = Lab::new()?;
    let host = reading_host(&lab)?;
    let reader = Reader::on(&host)?;
    let with_size = |size: u8| [&[253, size], &TOKEN[2..]].concat();
    let token = "66051 4 e7fc9abdb6441d57c5282463";
    let cases = [
        (syn(&TOKEN, 10), WHOLE, token, ""),
        (
            syn(&[&[1, 1][..], &TOKEN, &[0, 0]].concat(), 11),
            WHOLE,
            token,
            "",
        ),
        // Shorter, longer, and longer than all options.
        (
            syn(&with_size(12), 10),
            WHOLE,
            "",
            "its length is 12 instead of 20",
        ),
        (
            syn(&[with_size(24), vec![0; 4]].concat(), 11),
            WHOLE,
            "",
            "its length is 24 instead of 20",
        ),
        (
            syn(&with_size(255), 10),
            WHOLE,
            "",
            "its length is 255 instead of 20",
        ),
        // The header ends in it.
        (
            syn(&TOKEN, 7),
            WHOLE,
            "",
            "the TCP header ends after 8 of its 20 bytes",
        ),
        // The capture does.
        (
            syn(&TOKEN, 10),
            54 + 8,
            "",
            "Only 8 of its 20 bytes were captured",
        ),
        // Another experiment, no experiment, and behind the end of the options.
        (syn(&[253, 4, 0xf9, 0x89], 6), WHOLE, "", ""),
        (syn(&[253, 2, 0x55, 0x73], 6), WHOLE, "", ""),
        (syn(&[&[0; 4][..], &TOKEN].concat(), 11), WHOLE, "", ""),
    ];
    let frames: Vec<_> = cases.iter().map(|case| (case.0.clone(), case.1)).collect();
    let capture = file(&frames);
    let names = [
        "usher.token.slot",
        "usher.token.position",
        "usher.token.masked",
        "_ws.expert.message",
    ];
    let shown = reader.fields(&capture, "frame", &names)?;
    assert_eq!(shown.len(), cases.len());
    for (fields, (frame, _, token, message)) in shown.iter().zip(&cases) {
        let [slot, position, masked, messages] = &fields[..] else {
            return Err(format!("{fields:?}").into());
        };
        let values = format!("{slot} {position} {masked}");
        assert_eq!(values.trim(), *token, "{frame:?}");
        let says = ["Token is malformed: ", "Only "].map(|begin| messages.contains(begin));
        assert_eq!(says.contains(&true), !message.is_empty(), "{messages}");
        assert!(messages.contains(message), "{messages}");
    }
    let count = |filter: &str| {
        Ok::<_, Box<dyn std::error::Error>>(
            reader.fields(&capture, filter, &["frame.number"])?.len(),
        )
    };
    assert_eq!(count("usher.token.malformed")?, 4);
    assert_eq!(count("usher.token.cut")?, 1);
    assert_eq!(count("usher")?, 7);
    Ok(())
}

#[test]
fn no_option_makes_the_script_fail() -> Result {
    let lab = Lab::new()?;
    let host = reading_host(&lab)?;
    let mut frames = Vec::new();
    for before in [&[][..], &[1], &[2, 4, 5, 180], &[253]] {
        for size in 0..=42 {
            let option = [before, &[253, size], &TOKEN[2..]].concat();
            for words in 0..16 {
                frames.push((syn(&option, words), WHOLE));
            }
            for captured in 14..=54 + option.len() {
                frames.push((syn(&option, 11), captured));
            }
        }
        for cut in 0..=TOKEN.len() {
            let option = [before, &TOKEN[..cut]].concat();
            frames.extend((5..16).map(|words| (syn(&option, words), WHOLE)));
        }
    }
    let printed = Reader::on(&host)?.print(&file(&frames), &["-V", "-O", "usher"])?;
    for (text, least) in [
        ("Token: slot 66051, position 4", 30),
        ("Token is malformed", 1000),
    ] {
        let count = printed.matches(text).count();
        assert!(count > least, "{count} times {text}");
    }
    Ok(())
}
