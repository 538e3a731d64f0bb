// SPDX-License-Identifier: MIT OR GPL-2.0-only
//! Gets the guest's kernel: Debian's image, unmodified and not installed on this machine, and the
//! headers to build our module against. A kernel of another release of Debian comes with a system
//! of that release, whose compiler builds modules for it.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, bail, ensure};
use serde::Deserialize;

use super::debug_kernel::{self, DebugKernel};
use crate::tools::apt;
use crate::tools::cache::{self, Key};
use crate::tools::sh::{self, cmd};

/// The version in Debian 12, which is the usual one.
pub const USUAL: &str = "6.1";

/// The same version with PREEMPT_RT.
pub const RT: &str = "6.1-rt";

/// A kernel image with its modules.
pub struct Kernel {
    /// Its version, as [`of`] takes it.
    pub version: String,
    /// Its release, such as `6.1.0-30-amd64`.
    pub release: String,
    /// The kernel as an ELF file, which both Xen and QEMU boot. It is what the compressed boot
    /// image contains; unpacking it here is much quicker than in an emulated machine.
    pub image: PathBuf,
    /// The boot image, which firmware boots.
    pub boot_image: PathBuf,
    /// The directory `/lib/modules/RELEASE/kernel` of its package.
    pub modules: PathBuf,
    /// Its configuration.
    pub config: PathBuf,
    /// The tree that it was built in, if no package has its headers.
    pub tree: Option<PathBuf>,
    /// The archive of a system with its headers and their compiler, where this machine is not one.
    pub system: Option<PathBuf>,
}

impl Kernel {
    /// Returns the file that QEMU boots. QEMU enters an ELF file through the kernel's code for PVH,
    /// which a kernel with KASAN executes before KASAN has its memory.
    pub fn for_qemu(&self) -> &Path {
        if debug_kernel::of(&self.version).is_some() { &self.boot_image } else { &self.image }
    }

    /// Returns the version of its package, such as `6.1.192-2`, as the kernel itself says it.
    pub fn package_version(&self) -> Result<String> {
        // The kernel is no text.
        let mut grep = cmd("grep", ["-a", "-o", "-m1"]);
        grep.arg(format!("Linux version {} .* Debian [0-9][^ ]* ([-0-9]*)", self.release));
        let printed = sh::output(grep.arg(&self.image).env("LC_ALL", "C"))?;
        let version = printed.rsplit_once(" Debian ").and_then(|(_, rest)| rest.split_once(' '));
        Ok(version.with_context(|| format!("the kernel says `{printed}`"))?.0.to_owned())
    }

    /// Returns one of its modules, by the path below `modules`. If a kernel does not have it as a
    /// module, its code is built in or is a part of another module.
    pub fn module(&self, name: &str) -> Result<Option<Vec<u8>>> {
        let path = self.modules.join(name);
        let packed = path.with_extension("ko.xz");
        if path.exists() {
            return Ok(Some(fs::read(path)?));
        }
        if !packed.exists() {
            return Ok(None);
        }
        let out = cmd("xz", ["-dc"]).arg(&packed).output()?;
        ensure!(out.status.success(), "{}", packed.display());
        Ok(Some(out.stdout))
    }
}

/// How to get a kernel of another release of Debian: a file in `xtask/versions`.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Recipe {
    /// A release of Debian, and further suites. The last of them has the kernel.
    suites: Vec<String>,
    /// The kernel's kind, as the names of Debian's packages of it end.
    #[serde(default = "usual_flavour")]
    flavour: String,
    /// The release of Xen that is in the same release of Debian, if there are hooks for it.
    xen: Option<String>,
}

fn usual_flavour() -> String {
    "amd64".to_owned()
}

/// Returns the versions that there are recipes of.
pub fn versions() -> Result<Vec<String>> {
    let files = cache::files(&recipes())?;
    let name = |file: &str| Some(file.strip_prefix("linux-")?.strip_suffix(".toml")?.to_owned());
    Ok(files.iter().filter_map(|(file, _)| name(file)).collect())
}

fn recipes() -> PathBuf {
    sh::project().join("xtask/versions")
}

/// Returns the release of Xen that Debian has beside this kernel, if it is another than the usual
/// one.
pub fn xen_beside(version: &str) -> Result<Option<String>> {
    Ok(recipe(version)?.0.xen)
}

/// Reads the recipe of a version. Returns it with its text.
fn recipe(version: &str) -> Result<(Recipe, String)> {
    let file = recipes().join(format!("linux-{version}.toml"));
    if !file.exists() {
        bail!("no Linux {version}; there are: {}", versions()?.join(", "));
    }
    let text = fs::read_to_string(&file)?;
    Ok((toml::from_str(&text).with_context(|| file.display().to_string())?, text))
}

/// Gets the kernel of this version, or Debian 12's own.
pub fn of(version: Option<&str>) -> Result<Kernel> {
    let Some(version) = version.filter(|version| *version != USUAL) else { return kernel() };
    if let Some(kernel) = debug_kernel::of(version) {
        return debug(kernel);
    }
    let (recipe, text) = recipe(version)?;
    let key = Key::new("linux of another release 1").text(&text);
    let dir = cache::artefact(&format!("linux-{version}"), key, |dir| foreign(&recipe, dir))?;
    found(version, &dir, Some(dir.join(SYSTEM)))
}

/// Fetches the package with the source of the kernel into `dir`. Returns the archive in it.
pub fn fetch_source(kernel: &Kernel, dir: &Path) -> Result<PathBuf> {
    let package = format!("linux-source-{}", kernel.version);
    let debs = if kernel.version == USUAL {
        apt::fetch(&[&package], false, dir)?
    } else {
        apt::fetch_of(&recipe(&kernel.version)?.0.suites, &package, dir)?
    };
    apt::unpack(&debs, dir)?;
    fs::remove_dir_all(dir.join("debs"))?;
    Ok(dir.join(format!("usr/src/{package}.tar.xz")))
}

/// The name of the archive of another release's system.
const SYSTEM: &str = "system.tar.zst";

/// Makes another release's system with the headers, and takes the image out of its packages.
fn foreign(recipe: &Recipe, dir: &Path) -> Result<()> {
    apt::install(&["xz-utils", "zstd"], "unpacking the kernel")?;
    let suite = recipe.suites.last().context("a kernel is in a suite")?;
    let flavour = &recipe.flavour;
    let headers = format!("linux-headers-{flavour}/{suite}");
    let packages = ["gcc", "libc6-dev", "make", headers.as_str()];
    // The packages of the image are not installed, since their installation would make an initial
    // RAM disk.
    let script = format!(
        "mkdir /image; cd /image; apt-get -o APT::Sandbox::User=root download $(apt-cache depends \
         --recurse --important linux-image-{flavour}/{suite} | grep ^linux-)"
    );
    let hook = format!("chroot \"$1\" sh -ec '{script}'");
    let archive = dir.join(SYSTEM);
    apt::system_of(&recipe.suites, &packages, &hook, &archive)?;
    let mut tar = cmd("tar", ["-x", "--no-same-owner", "-f"]);
    sh::output(tar.arg(&archive).arg("-C").arg(dir).arg("./image"))?;
    let debs: Vec<PathBuf> =
        cache::files(&dir.join("image"))?.into_iter().map(|(_, path)| path).collect();
    apt::unpack(&debs, dir)?;
    fs::remove_dir_all(dir.join("image"))?;
    let modules = modules_dir(dir);
    let found = fs::read_dir(&modules)?.next().context("a kernel has modules")??;
    let release = found.file_name().to_string_lossy().into_owned();
    decompress(&boot_image(dir, &release)?, &dir.join("vmlinux"))?;
    Ok(fs::write(dir.join("release"), release)?)
}

fn boot_image(dir: &Path, release: &str) -> Result<PathBuf> {
    let images = [
        dir.join(format!("boot/vmlinuz-{release}")),
        modules_dir(dir).join(release).join("vmlinuz"),
    ];
    images.into_iter().find(|path| path.exists()).context("the packages have no image")
}

fn modules_dir(dir: &Path) -> PathBuf {
    let merged = dir.join("usr/lib/modules");
    if merged.exists() { merged } else { dir.join("lib/modules") }
}

/// Gets Debian's plain amd64 kernel. The smaller cloud flavour lacks `CONFIG_XEN_DOM0`.
pub fn kernel() -> Result<Kernel> {
    if !apt::is_testbeds()? {
        let suites = vec![apt::TESTBED.to_owned()];
        let recipe = Recipe { suites, flavour: usual_flavour(), xen: None };
        let key = Key::new("linux of the testbed's release 1");
        let dir = cache::artefact("linux", key, |dir| foreign(&recipe, dir))?;
        return found(USUAL, &dir, Some(dir.join(SYSTEM)));
    }
    let dir = cache::artefact("linux", Key::new("linux 2"), |dir| {
        apt::install(&["xz-utils"], "unpacking the kernel")?;
        let depends = apt::depends("linux-image-amd64")?;
        let image = depends
            .iter()
            .find(|name| name.starts_with("linux-image-"))
            .context("linux-image-amd64 names no kernel image")?;
        let debs = apt::fetch(&[image.as_str()], false, dir)?;
        apt::unpack(&debs, dir)?;
        fs::remove_dir_all(dir.join("debs"))?;
        let release = image.trim_start_matches("linux-image-");
        decompress(&boot_image(dir, release)?, &dir.join("vmlinux"))?;
        fs::write(dir.join("release"), release)?;
        Ok(())
    })?;
    found(USUAL, &dir, None)
}

/// Builds the usual kernel so that it checks itself.
fn debug(kernel: &DebugKernel) -> Result<Kernel> {
    let debians = self::kernel()?;
    let dir = cache::artefact("debug-kernel", kernel.key(&debians.release), |dir| {
        let archive = fetch_source(&debians, dir)?;
        kernel.build(&archive, &debians.config, dir)?;
        fs::remove_file(archive)?;
        let release = fs::read_to_string(dir.join("release"))?;
        decompress(&boot_image(dir, &release)?, &dir.join("vmlinux"))
    })?;
    let tree = dir.join(debug_kernel::TREE);
    let found = found(kernel.version, &dir, None)?;
    Ok(Kernel { config: tree.join(".config"), tree: Some(tree), ..found })
}

fn found(version: &str, dir: &Path, system: Option<PathBuf>) -> Result<Kernel> {
    let release = fs::read_to_string(dir.join("release"))?;
    Ok(Kernel {
        version: version.to_owned(),
        image: dir.join("vmlinux"),
        boot_image: boot_image(dir, &release)?,
        modules: modules_dir(dir).join(&release).join("kernel"),
        config: dir.join(format!("boot/config-{release}")),
        tree: None,
        release,
        system,
    })
}

/// Takes the compressed kernel out of a boot image, by the setup header that the Linux x86 boot
/// protocol describes.
fn decompress(image: &Path, vmlinux: &Path) -> Result<()> {
    let bytes = fs::read(image)?;
    let word = |at: usize| -> Result<usize> {
        let field = bytes.get(at..at + 4).context("the boot image is too short")?;
        Ok(u32::from_le_bytes(field.try_into()?) as usize)
    };
    let setup_sectors = usize::from(bytes[0x1f1]);
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    // The payload ends with the unpacked size, which is not part of the packed stream.
    let end = start + word(0x24c)? - 4;
    let payload = bytes.get(start..end).context("the boot image has no payload")?;
    let packed = vmlinux.with_extension("packed");
    fs::write(&packed, payload)?;
    let program = if payload.starts_with(b"\xfd7zXZ") { "xz" } else { "zstd" };
    let mut unpack = cmd(program, ["-dc"]);
    let status = unpack.arg(&packed).stdout(File::create(vmlinux)?).status()?;
    ensure!(status.success(), "{program} cannot unpack {}", image.display());
    Ok(fs::remove_file(packed)?)
}

/// Installs the headers that match `kernel` and returns their directory.
pub fn headers(kernel: &Kernel) -> Result<PathBuf> {
    if let Some(tree) = &kernel.tree {
        return Ok(tree.clone());
    }
    let package = format!("linux-headers-{}", kernel.release);
    apt::install(&[&package, "make", "gcc", "libc6-dev"], "building the kernel module")?;
    Ok(Path::new("/usr/src").join(package))
}
