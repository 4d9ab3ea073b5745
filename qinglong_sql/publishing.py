"""Publishing a package, and what that moves beside the definition (DESIGN §5)."""

from qinglong_sql.package import Package
from qinglong_sql.store import Row, Store


def publish_package(store: Store, package: Package) -> tuple[Row, str]:
    """Publish a checked package; the step's row, and words when the package's folder moved.

    The same content again is a replay that changes nothing but the folder, which is one for all
    generations: steps of open runs begin there as well.
    """
    folder = str(package.base_dir)
    before = store.read("package_state", package_key=package.key, state="active")
    row = store.call(
        "publish_package",
        p_package_key=package.key,
        p_manifest=package.manifest,
        p_base_dir=folder,
    )[0]
    was = before[0]["base_dir"] if before else folder
    if was == folder:
        return row, ""
    return row, (
        f"note: the folder of {package.key} is now {folder} (it was {was});"
        " runs that are open execute there too"
    )
