package layout

import (
	"regexp"
	"testing"

	"k8s.io/apimachinery/pkg/types"
)

func TestFormulas(t *testing.T) {
	cases := map[string]struct {
		reason string
		got    string
		want   string
	}{
		"Attachment": {
			reason: "the attach/detach controller computes the same name",
			got:    Attachment("vol-1", "hostpath.csi.example", "node1"),
			want:   "csi-e424bc1f64d69a0b2ca292346edd143e8648310b90e25e8322408ab9de17305d",
		},
		"SeedAttachment": {
			reason: "the name in seeds 000 and 001",
			got:    SeedAttachment("pv1", "node1"),
			want:   "pv-2f6f854466c2ef6295a0cca5777a7338f49033262795bfe9278bb463f07c9905",
		},
		"InlineHandle": {
			reason: "an inline volume keeps its handle when a kubelet takes over (test item T4)",
			got:    InlineHandle("0f8a2c1e-1111-2222-3333-444455556666", "vol1"),
			want:   "csi-28c7f1f6f5c00c147c97f4f1ad912bea9b02b66f5fb61cb36b4654bc8218de1c",
		},
		"StagingKey": {
			reason: "the staging directory is found by the handle",
			got:    StagingKey("vol-1"),
			want:   "d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49",
		},
		"Unique": {
			reason: "the name in volumesInUse and volumesAttached",
			got:    Unique("hostpath.csi.example", "vol-1"),
			want:   "kubernetes.io/csi/hostpath.csi.example^vol-1",
		},
		"UniqueInline": {
			reason: "an inline volume belongs to one pod",
			got:    UniqueInline("0f8a2c1e-1111-2222-3333-444455556666", "vol1"),
			want:   "kubernetes.io/csi/0f8a2c1e-1111-2222-3333-444455556666-vol1",
		},
		"Escape": {
			reason: "a slash cannot be in a path element",
			got:    Escape("kubernetes.io/csi"),
			want:   PluginDir,
		},
		"Unescape": {reason: "the reverse", got: Unescape(PluginDir), want: Plugin},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, tc.got, tc.want)
			}
		})
	}
}

func TestInlineHandleDependsOnBothParts(t *testing.T) {
	base := InlineHandle("uid-1", "data")
	if InlineHandle("uid-1", "data") != base {
		t.Error("the same pod and volume must give the same handle")
	}
	for _, other := range []string{InlineHandle("uid-2", "data"), InlineHandle("uid-1", "logs")} {
		if other == base {
			t.Errorf("another pod or volume gave the same handle %q", other)
		}
	}
	if InlineHandle("app", "-db-data") == InlineHandle("app-db", "-data") || UniqueInline("app", "db-data") == UniqueInline("app-db", "data") {
		t.Error("two pods whose UIDs are no UUIDs share a volume")
	}
}

// TestInlineHandleForm is test item T6: the handle fits the limits of CSI strings.
func TestInlineHandleForm(t *testing.T) {
	form := regexp.MustCompile(`^csi-[0-9a-f]{64}$`)
	for _, uid := range []types.UID{"", "x", "0f8a2c1e-1111-2222-3333-444455556666"} {
		h := InlineHandle(uid, "a-rather-long-volume-name")
		if !form.MatchString(h) || len(h) > 128 {
			t.Errorf("handle %q for pod %q does not have the form %s", h, uid, form)
		}
	}
}

func TestSplitUnique(t *testing.T) {
	cases := map[string]struct {
		reason         string
		name           string
		driver, handle string
		fails          bool
	}{
		"Plain":         {reason: "the usual form", name: "kubernetes.io/csi/d.example^v1", driver: "d.example", handle: "v1"},
		"CaretInHandle": {reason: "a handle may contain the separator", name: "kubernetes.io/csi/d^a^b", driver: "d", handle: "a^b"},
		"SlashInHandle": {reason: "a handle may contain slashes", name: "kubernetes.io/csi/d^/a/b", driver: "d", handle: "/a/b"},
		"OtherPlugin":   {reason: "not a CSI volume", name: "kubernetes.io/nfs/x^y", fails: true},
		"Inline":        {reason: "inline names have no separator", name: UniqueInline("uid", "v"), fails: true},
		"NoHandle":      {reason: "an empty handle is no volume", name: "kubernetes.io/csi/d^", fails: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			driver, handle, err := SplitUnique(tc.name)
			if (err != nil) != tc.fails {
				t.Fatalf("%s: error %v, want failure %t", tc.reason, err, tc.fails)
			}
			if driver != tc.driver || handle != tc.handle {
				t.Errorf("%s: got (%q, %q), want (%q, %q)", tc.reason, driver, handle, tc.driver, tc.handle)
			}
		})
	}
}

func TestPaths(t *testing.T) {
	r := Root("/var/lib/kubelet")
	sha := "d2e8363faaac7ae76def3b14091d8eb5755f6b92e9531627aeec833a8731cc49"
	cases := map[string]struct{ reason, got, want string }{
		"Target": {
			reason: "where containers find the volume",
			got:    r.Target("u1", "pvc-1"),
			want:   "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/pvc-1/mount",
		},
		"TargetEscapes": {
			reason: "a PV name cannot leave its directory",
			got:    r.TargetDir("u1", "a/b"),
			want:   "/var/lib/kubelet/pods/u1/volumes/kubernetes.io~csi/a~b",
		},
		"Staging": {
			reason: "where a kubelet stages the same volume",
			got:    r.Staging("d.example", "vol-1"),
			want:   "/var/lib/kubelet/plugins/kubernetes.io/csi/d.example/" + sha + "/globalmount",
		},
		"DeviceRecord": {
			reason: "where a kubelet looks for the record of a block volume", got: r.DeviceRecordDir("pvc-1"),
			want: "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-1/data",
		},
		"DeviceMap": {
			reason: "what a kubelet mounts for containers", got: r.DeviceMap("u1", "pvc-1"),
			want: "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/u1",
		},
		"DeviceStaging": {
			reason: "where a kubelet stages a block volume", got: r.DeviceStaging("pvc-1"),
			want: "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/staging/pvc-1",
		},
		"DeviceTarget": {
			reason: "where the driver makes the device", got: r.DeviceTarget("u1", "pvc-1"),
			want: "/var/lib/kubelet/plugins/kubernetes.io/csi/volumeDevices/publish/pvc-1/u1",
		},
		"DeviceLink": {
			reason: "where a container runtime finds the device", got: r.DeviceLink("u1", "pvc-1"),
			want: "/var/lib/kubelet/pods/u1/volumeDevices/kubernetes.io~csi/pvc-1",
		},
		"Registry": {reason: "where registrars put sockets", got: r.Registry(), want: "/var/lib/kubelet/plugins_registry"},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if tc.got != tc.want {
				t.Errorf("%s: got %q, want %q", tc.reason, tc.got, tc.want)
			}
		})
	}
}
