"""tools/helm_program.py takes the one file out of three archives, and says so where it is not there."""

import io
import tarfile
import zipfile

import pytest

import helm_program


def wheel(path, member):
    """An archive in an archive in an archive, as the package has it."""
    layer = io.BytesIO()
    with zipfile.ZipFile(layer, "w") as archive:
        archive.writestr("kubectl/kubectl", "another program")
        archive.writestr(member, "#!/bin/sh\necho helm\n")
    npm = io.BytesIO()
    with tarfile.open(fileobj=npm, mode="w:gz") as archive:
        for name, content in (("package/README.md", b"text"), ("package/lib/layer.zip", layer.getvalue())):
            about = tarfile.TarInfo(name)
            about.size = len(content)
            archive.addfile(about, io.BytesIO(content))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("package/__init__.py", "")
        archive.writestr("package/_jsii/layer@2.0.0.jsii.tgz", npm.getvalue())
    return path


def test_takes_the_program(tmp_path):
    target = tmp_path / "helm"
    helm_program.main(str(wheel(tmp_path / "a.whl", "helm/helm")), str(target))
    assert target.read_text() == "#!/bin/sh\necho helm\n"
    assert target.stat().st_mode & 0o777 == 0o755


def test_another_package_is_an_error(tmp_path):
    with pytest.raises(SystemExit, match=r"holds no .*layer.zip with helm/helm"):
        helm_program.program(wheel(tmp_path / "a.whl", "helm/other"))
