//! The page of entry points.

use usher_mac::EntryPoint;

#[test]
fn the_page_of_entry_points_is_that_of_the_header() {
    let made = EntryPoint::page();
    let path = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../../docs/mac-entry-points.md"
    );
    if std::env::var_os("USHER_WRITE_PAGES").is_some() {
        std::fs::write(path, &made).unwrap();
    }
    let page = std::fs::read_to_string(path).unwrap();
    assert!(
        page == made,
        "docs/mac-entry-points.md is not that of bpf/include/usher_mac_policy.h; \
         USHER_WRITE_PAGES=1 cargo test -p usher-mac --test page writes it"
    );
}
