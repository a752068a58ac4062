//! The structures that this crate shares with the programs of bpf/mac, and the texts in them.

#![allow(dead_code, reason = "modules use the rest")]
#![allow(
    missing_docs,
    reason = "the headers of bpf/include have their documentation"
)]

use usher_label::ElementName;

include!(concat!(env!("OUT_DIR"), "/usher_mac_label.rs"));
include!(concat!(env!("OUT_DIR"), "/usher_mac_requests.rs"));
include!(concat!(env!("OUT_DIR"), "/usher_mac_policy.rs"));
include!(concat!(env!("OUT_DIR"), "/usher_mac_settings.rs"));

/// The name of a module in its slot.
pub(crate) fn name_of(module: &MacModule) -> String {
    let end = module.name.iter().position(|byte| *byte == 0);
    let name = &module.name[..end.unwrap_or(module.name.len())];
    String::from_utf8_lossy(name).into_owned()
}

/// A text that zeros pad; none where no zero ends it.
pub(crate) fn text(bytes: &[u8]) -> Option<String> {
    let (0, text) = bytes.split_last()? else {
        return None;
    };
    let text = String::from_utf8_lossy(text);
    Some(text.trim_end_matches('\0').to_owned())
}

/// Whether this is a possible name of a module: its elements have the same name.
#[must_use]
pub fn is_module_name(text: &str) -> bool {
    text.parse::<ElementName>().is_ok()
}
