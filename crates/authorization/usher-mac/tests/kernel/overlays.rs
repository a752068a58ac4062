//! Files that processes reach through an overlay are judged by the labels of the layers' files: also where the
//! kernel asks about the overlay's own file only, which has none. Each refusal has a twin that is permitted.

use super::*;

/// A process that may lower itself.
const NINE: &str = "mls/9(low-9)";

/// An overlay, which is taken away at the end.
struct Overlay(PathBuf);

impl Overlay {
    /// `options` begin with a comma, or are empty.
    fn of(world: &World, name: &str, lower: &Path, writable: &[PathBuf; 2], options: &str) -> Self {
        let merged = world.path(name);
        fs::create_dir(&merged).unwrap();
        let [upper, work] = writable.each_ref().map(|path| path.display());
        let lower = lower.display();
        let layers = format!("lowerdir={lower},upperdir={upper},workdir={work}{options}");
        let mut mount = Command::new("mount");
        mount.args(["-t", "overlay", "overlay", "-o", &layers]);
        assert!(mount.arg(&merged).status().unwrap().success());
        Self(merged)
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).display().to_string()
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let ended = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(std::thread::panicking() || ended.unwrap().success());
    }
}

// Threat model: M106
#[test]
fn a_file_on_an_overlay_has_the_label_of_its_layer() {
    let Some(mut world) = World::new("overlays", 88) else {
        return;
    };
    let user = world.user;
    let mounted = world.mount_multilabel();
    // No module was loaded when this file was made, and no process has labelled it.
    fs::create_dir(mounted.join("lower")).unwrap();
    fs::write(mounted.join("lower/unknown"), "text").unwrap();
    for name in ["mls", "lomac"] {
        let module = Module::named(name).unwrap();
        world.framework().load(&module).unwrap();
    }
    let folder = |name: &str| {
        let path = mounted.join(name);
        let _ = fs::create_dir(&path);
        set_label(&path, "mls/equal,lomac/equal");
        path
    };
    set_label(&mounted, "mls/equal,lomac/equal");
    let lower = folder("lower");
    let [writable, with_metacopy, outer] = ["", "meta_", "outer_"]
        .map(|of| ["upper", "work"].map(|name| folder(&format!("{of}{name}"))));
    for (name, label, program) in [
        ("secret", "mls/9,lomac/equal", None),
        ("copied", "mls/9,lomac/equal", None),
        ("opened_up", "mls/9,lomac/equal", None),
        ("half_copied", "mls/9,lomac/equal", None),
        ("sent", "mls/9,lomac/equal", None),
        ("unsent", "mls/9,lomac/equal", None),
        ("public", "mls/low,lomac/equal", None),
        ("closed_up", "mls/low,lomac/equal", None),
        ("low", "mls/equal,lomac/low", None),
        ("high", "mls/equal,lomac/high", None),
        ("high_shell", "mls/equal,lomac/high", Some("/bin/dash")),
        (
            "marked_shell",
            "mls/equal,lomac/high[low]",
            Some("/bin/dash"),
        ),
    ] {
        let file = lower.join(name);
        match program {
            Some(program) => fs::copy(program, &file).map(drop).unwrap(),
            None => fs::write(&file, "text").unwrap(),
        }
        set_label(&file, label);
    }
    let overlay = Overlay::of(&world, "merged", &lower, &writable, "");
    let meta = Overlay::of(&world, "meta", &lower, &with_metacopy, ",metacopy=on");
    let stacked = Overlay::of(&world, "stacked", &overlay.0, &outer, "");
    let on = |element: &str, act: &str, path: &str| format!("serve:{element}:{user}:{act}:{path}");
    let held = |path: &str, next: &str, change: &str| {
        format!("maps_held:{NINE}:{user}:{path}:{next}:{change}")
    };
    let path = |name: &str| overlay.path(name);
    let receives =
        |name: &str, label: &str| format!("receives_held:{}:{label},mls/9,lomac/equal", path(name));
    let takes = |name: &str| format!("takes:lomac/high:{}:maps:{}", path("high"), path(name));
    let becomes = |name: &str| format!("becomes:lomac/high:{}:{}", path("high"), path(name));
    expect(&[
        // A descriptor of another level.
        (held(&path("secret"), "mls/5", "none"), "EACCES"),
        (held(&path("secret"), "mls/9", "none"), "ok"),
        (held(&path("public"), "mls/5", "none"), "ok"),
        (held(&stacked.path("secret"), "mls/5", "none"), "EACCES"),
        (held(&stacked.path("secret"), "mls/9", "none"), "ok"),
        (held(&stacked.path("public"), "mls/5", "none"), "ok"),
        // A file that is open stays in the lower layer when it is copied up; the copy gets another label.
        (held(&path("copied"), "mls/5", "copied"), "EACCES"),
        (held(&path("opened_up"), "mls/5", "mls/low"), "EACCES"),
        (on("mls/5", "mapped", &path("opened_up")), "ok"),
        (on("mls/5", "stat", &path("opened_up")), "ok"),
        (held(&path("closed_up"), "mls/5", "mls/9"), "ok"),
        (on("mls/5", "mapped", &path("closed_up")), "EACCES"),
        (on("mls/5", "stat", &path("closed_up")), "EACCES"),
        (on("mls/9", "stat", &path("closed_up")), "ok"),
        // The label of the layer's file changes by another way.
        (on("mls/5", "mapped", &path("public")), "ok"),
        (
            format!(
                "label_file:{}:mls/9,lomac/equal",
                lower.join("public").display()
            ),
            "ok",
        ),
        (on("mls/5", "mapped", &path("public")), "EACCES"),
        (held(&path("public"), "mls/5", "none"), "EACCES"),
        (held(&path("public"), "mls/9", "none"), "ok"),
        // Attributes: those of files and directories, and by a descriptor.
        (on("mls/5", "stat", &path("secret")), "EACCES"),
        (on("mls/5", "stat_of_a_name", &path("secret")), "EACCES"),
        (on("mls/9", "stat", &path("secret")), "ok"),
        (on("mls/9", "stat_of_a_name", &path("secret")), "ok"),
        (on("mls/5", "stat", &stacked.path("secret")), "EACCES"),
        (on("mls/9", "stat", &stacked.path("secret")), "ok"),
        (on("mls/5", "stat", &path("")), "ok"),
        // As on a multilabel file system itself.
        (on("mls/5", "stat", &path("unknown")), "EACCES"),
        (on("none", "stat", &path("unknown")), "ok"),
        // Attributes are in the upper layer, and the data is in the lower one.
        (format!("chmod:{}", meta.path("half_copied")), "ok"),
        (
            format!(
                "label_file:{}:mls/low,lomac/equal",
                meta.path("half_copied")
            ),
            "ok",
        ),
        (on("mls/5", "stat", &meta.path("half_copied")), "ok"),
        (on("mls/5", "read", &meta.path("half_copied")), "EACCES"),
        (held(&meta.path("half_copied"), "mls/5", "none"), "EACCES"),
        (held(&meta.path("half_copied"), "mls/9", "none"), "ok"),
        // A process is lowered by what it maps and executes.
        (takes("low"), "EACCES"),
        (takes("high"), "ok"),
        (becomes("marked_shell"), "EACCES"),
        (becomes("high_shell"), "ok"),
    ]);
    // A descriptor from before a copy-up reads the copy.
    let test = Module::named("test").unwrap();
    world.framework().load(&test).unwrap();
    for name in ["sent", "unsent"] {
        set_label(&lower.join(name), "test/plain");
    }
    expect(&[
        (receives("unsent", "test/unsent"), "EACCES"),
        (receives("sent", "test/plain"), "ok"),
    ]);
    // Only the attributes were copied.
    let copied = fs::metadata(with_metacopy[0].join("half_copied")).unwrap();
    assert_eq!((copied.len(), copied.blocks()), (4, 0));
    drop((stacked, overlay, meta));
    let ended = Command::new("umount").arg("-l").arg(&mounted).status();
    assert!(ended.unwrap().success());
}

// Threat model: M108
#[test]
fn a_file_that_the_kernel_forgot_has_its_label() {
    let Some(mut world) = World::new("forgotten", 89) else {
        return;
    };
    let image = world.path("image");
    let mounted = world.path("disk");
    fs::create_dir(&mounted).unwrap();
    fs::write(&image, vec![0; 4 << 20]).unwrap();
    let run = |program: &str, arguments: &[&str], path: &Path| {
        let done = Command::new(program).args(arguments).arg(path).output();
        let done = done.unwrap();
        assert!(done.status.success(), "{program}: {done:?}");
    };
    run("modprobe", &[], Path::new("loop"));
    run("mkfs.ext4", &["-q"], &image);
    run(
        "mount",
        &["-o", "loop", &image.display().to_string()],
        &mounted,
    );
    let device = fs::metadata(&mounted).unwrap().dev();
    let devices = BTreeSet::from([(libc::major(device), libc::minor(device))]);
    world.framework().set_multilabel(&devices).unwrap();
    let mls = Module::named("mls").unwrap();
    world.framework().load(&mls).unwrap();
    let secret = mounted.join("secret");
    fs::write(&secret, "text").unwrap();
    set_label(&mounted, "mls/equal");
    set_label(&secret, "mls/9");
    let by = |element: &str, act: &str| format!("serve:{element}:0:{}", on(act, &secret));
    expect(&[
        (by("mls/9", "read"), "ok"),
        (by("mls/9", "stat"), "ok"),
        (by("mls/5", "read"), "EACCES"),
    ]);
    let synced = Command::new("sync").status().unwrap();
    assert!(synced.success());
    fs::write("/proc/sys/vm/drop_caches", "3").unwrap();
    expect(&[
        // The label is not known until the file is opened.
        (by("mls/9", "stat"), "EACCES"),
        (by("mls/5", "read"), "EACCES"),
        (by("mls/9", "read"), "ok"),
        (by("mls/9", "stat"), "ok"),
        (by("mls/5", "stat"), "EACCES"),
    ]);
    run("umount", &["-l"], &mounted);
}
