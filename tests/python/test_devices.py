"""What the build and the machine have, asked without a card."""

import pytest

import mpfa

PROBLEM = {"q_heads": 32, "kv_heads": 8, "head_dim": 128, "q_dtype": "bfloat16", "max_kv": 4096}


def test_build_info_names_devices_and_the_reason():
    info = mpfa.build_info()
    assert info.version == mpfa.__version__ and info.devices[0] == "cpu"
    assert bool(info.cuda) == ("sm90" in info.devices) != bool(info.without_cuda)
    assert info.cuda in str(info) and info.without_cuda in str(info)


def test_support_does_not_need_the_card():
    built = "sm90" in mpfa.build_info().devices
    support = mpfa.supports("nvfp4", **PROBLEM, device="sm90", max_q=4)
    assert bool(support) == built
    if not built:
        assert "unsupported: built without CUDA kernels" in support.reasons[0]
    refused = mpfa.supports("turboquant_4bit", **{**PROBLEM, "head_dim": 96}, max_q=100, device="sm90")
    assert not refused and len(refused.reasons) >= 3  # every reason, not the first
    assert not mpfa.supports("mxfp4,rotate=qk", **PROBLEM, device="sm90")
    assert "sm100" in mpfa.supports("nvfp4", **PROBLEM, device="sm100").reasons[0]


def test_the_machine_is_asked_by_available():
    assert mpfa.available("cpu").device == "cpu"
    found = mpfa.available()
    assert bool(found) != bool(found.reason)
    assert bool(mpfa.supports("nvfp4", **PROBLEM, device="cuda")) == bool(found)
    with pytest.raises(mpfa.MpfaError, match="device 'gpu' is not known; use cpu, cuda"):
        mpfa.available("gpu")


def test_without_a_card_nothing_moves():
    if mpfa.available():
        pytest.skip("there is a card")
    cache = mpfa.PagedCache("mxfp4", q_heads=4, kv_heads=2, head_dim=64)
    pages = mpfa.Pages.empty(2, 16, 2, 64, format="mxfp4")
    for call in (cache.to_device, pages.to_device):
        with pytest.raises(mpfa.MpfaError, match="to_device: .*(no CUDA device|built without)"):
            call()
    with pytest.raises(mpfa.MpfaError, match="k is in host memory; move it with Pages.to_device"):
        mpfa.DevicePageView(pages, pages, page_table=None, lengths=None)
