package volume

import (
	"strings"
	"testing"

	"github.com/container-storage-interface/spec/lib/go/csi"
	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/testing/protocmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
)

// mount returns the capability of a mounted volume.
func mount(mode csi.VolumeCapability_AccessMode_Mode) *csi.VolumeCapability {
	return &csi.VolumeCapability{
		AccessMode: &csi.VolumeCapability_AccessMode{Mode: mode},
		AccessType: &csi.VolumeCapability_Mount{Mount: &csi.VolumeCapability_MountVolume{FsType: "ext4", MountFlags: []string{"noatime"}}},
	}
}

// fromVolume returns the content of a volume.
func fromVolume(id string) *csi.VolumeContentSource {
	return &csi.VolumeContentSource{Type: &csi.VolumeContentSource_Volume{Volume: &csi.VolumeContentSource_VolumeSource{VolumeId: id}}}
}

func TestRequest(t *testing.T) {
	requirement := &csi.TopologyRequirement{Requisite: []*csi.Topology{{Segments: map[string]string{"zone": "a"}}}}
	spec := newSpec()
	spec.MutableParameters = map[string]string{"iops": "100"}
	spec.Topology = requirement
	spec.Source = &Source{Ref: SourceRef{Kind: "PersistentVolumeClaim", Namespace: "team", Name: "a"}, Content: fromVolume("vol-a")}
	got, err := spec.Request()
	if err != nil {
		t.Fatal(err)
	}
	want := &csi.CreateVolumeRequest{
		Name:                      "pvc-0a1b2c3d-0000-4000-8000-000000000001",
		CapacityRange:             &csi.CapacityRange{RequiredBytes: 1 << 30},
		VolumeCapabilities:        []*csi.VolumeCapability{mount(csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER)},
		Parameters:                map[string]string{"type": "ssd"},
		MutableParameters:         map[string]string{"iops": "100"},
		VolumeContentSource:       fromVolume("vol-a"),
		AccessibilityRequirements: requirement,
	}
	if got, want := spec.Source.Ref.String(), "PersistentVolumeClaim team/a"; got != want {
		t.Errorf("source %q, want %q", got, want)
	}
	if diff := cmp.Diff(want, got, protocmp.Transform()); diff != "" {
		t.Errorf("request (-want +got):\n%s", diff)
	}
}

func TestAccessModes(t *testing.T) {
	const (
		writer  = csi.VolumeCapability_AccessMode_SINGLE_NODE_WRITER
		single  = csi.VolumeCapability_AccessMode_SINGLE_NODE_SINGLE_WRITER
		multi   = csi.VolumeCapability_AccessMode_SINGLE_NODE_MULTI_WRITER
		readers = csi.VolumeCapability_AccessMode_MULTI_NODE_READER_ONLY
		writers = csi.VolumeCapability_AccessMode_MULTI_NODE_MULTI_WRITER
	)
	all := []corev1.PersistentVolumeAccessMode{corev1.ReadWriteOnce, corev1.ReadWriteOncePod, corev1.ReadOnlyMany, corev1.ReadWriteMany}
	cases := map[string]struct {
		reason     string
		modes      []corev1.PersistentVolumeAccessMode
		singleNode bool
		want       []csi.VolumeCapability_AccessMode_Mode
		err        string
	}{
		"Classic": {
			reason: "Drivers without the capability know one single node mode.",
			modes:  all, want: []csi.VolumeCapability_AccessMode_Mode{writer, writer, readers, writers},
		},
		"SingleNodeModes": {
			reason: "Drivers with the capability distinguish one writer from many.",
			modes:  all, singleNode: true, want: []csi.VolumeCapability_AccessMode_Mode{multi, single, readers, writers},
		},
		"None": {
			reason: "A claim without access modes cannot be asked for.",
			err:    "spec.accessModes",
		},
		"Unknown": {
			reason: "A mode that CSI does not know is named in the error.",
			modes:  []corev1.PersistentVolumeAccessMode{"ReadWriteSometimes"}, err: `"ReadWriteSometimes"`,
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			spec := newSpec()
			spec.Claim = newClaim(tc.modes...)
			spec.SingleNodeModes = tc.singleNode
			request, err := spec.Request()
			if tc.err != "" {
				if err == nil || !strings.Contains(err.Error(), tc.err) {
					t.Fatalf("%s\nerror %v, want it to contain %q", tc.reason, err, tc.err)
				}
				return
			}
			if err != nil {
				t.Fatalf("%s\n%v", tc.reason, err)
			}
			var got []csi.VolumeCapability_AccessMode_Mode
			for _, capability := range request.GetVolumeCapabilities() {
				got = append(got, capability.GetAccessMode().GetMode())
			}
			if diff := cmp.Diff(tc.want, got); diff != "" {
				t.Errorf("%s\nmodes (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
}

func TestBlockVolumesHaveNoFileSystem(t *testing.T) {
	spec := newSpec()
	block(spec.Claim)
	request, err := spec.Request()
	if err != nil {
		t.Fatal(err)
	}
	capability := request.GetVolumeCapabilities()[0]
	if capability.GetBlock() == nil || capability.GetMount() != nil {
		t.Errorf("capability %v, want that of a block volume", capability)
	}
	pv, err := spec.PersistentVolume(&csi.Volume{VolumeId: "v"}, Policy{Driver: driver})
	if err != nil {
		t.Fatal(err)
	}
	if pv.Spec.CSI.FSType != "" {
		t.Errorf("a block volume got the file system %q", pv.Spec.CSI.FSType)
	}
}

func TestRequestedBytes(t *testing.T) {
	cases := map[string]struct {
		reason  string
		request string
		want    int64
		err     bool
	}{
		"Exact":    {reason: "Units are those of Kubernetes.", request: "1500M", want: 1500_000_000},
		"RoundsUp": {reason: "A fraction of a byte asks for the whole byte.", request: "0.5", want: 1},
		"Negative": {reason: "Nothing has a negative size.", request: "-1", err: true},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := newClaim()
			claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse(tc.request)
			got, err := RequestedBytes(claim)
			if got != tc.want || (err != nil) != tc.err {
				t.Errorf("%s\ngot %d, %v, want %d, error %v", tc.reason, got, err, tc.want, tc.err)
			}
		})
	}
	t.Run("Unset", func(t *testing.T) {
		claim := newClaim()
		claim.Spec.Resources.Requests = nil
		if _, err := RequestedBytes(claim); err == nil || !strings.Contains(err.Error(), "spec.resources.requests.storage") {
			t.Errorf("error %v, want it to name the field", err)
		}
	})
}

func TestWithMetadata(t *testing.T) {
	parameters := map[string]string{"type": "ssd"}
	got := WithMetadata(parameters, newClaim(), "pvc-1")
	want := map[string]string{
		"type":                             "ssd",
		"csi.storage.k8s.io/pvc/name":      "data",
		"csi.storage.k8s.io/pvc/namespace": "team",
		"csi.storage.k8s.io/pv/name":       "pvc-1",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("parameters (-want +got):\n%s", diff)
	}
	if len(parameters) != 1 {
		t.Errorf("the parameters of the class were changed: %v", parameters)
	}
}

func TestCheck(t *testing.T) {
	cases := map[string]struct {
		reason  string
		source  *csi.VolumeContentSource
		created *csi.Volume
		err     string
	}{
		"Copy":    {reason: "It has the content.", source: fromVolume("a"), created: &csi.Volume{VolumeId: "v", ContentSource: fromVolume("a")}},
		"Empty":   {reason: "It has none.", source: fromVolume("a"), created: &csi.Volume{VolumeId: "v"}, err: "content source"},
		"Exact":   {reason: "What was asked for is good.", created: &csi.Volume{VolumeId: "v", CapacityBytes: 100}},
		"Larger":  {reason: "More is good as well.", created: &csi.Volume{VolumeId: "v", CapacityBytes: 101}},
		"Unknown": {reason: "Zero stands for unknown.", created: &csi.Volume{VolumeId: "v"}},
		"Smaller": {reason: "Less is not what was asked for.", created: &csi.Volume{VolumeId: "v", CapacityBytes: 99}, err: "99 bytes"},
		"NoID":    {reason: "A volume without a name cannot be used.", created: &csi.Volume{}, err: ErrIncomplete.Error()},
		"Nothing": {reason: "An empty answer proves nothing.", err: ErrIncomplete.Error()},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			request := &csi.CreateVolumeRequest{Name: "pvc-1", CapacityRange: &csi.CapacityRange{RequiredBytes: 100}, VolumeContentSource: tc.source}
			err := Check(request, tc.created)
			if tc.err == "" && err != nil || tc.err != "" && (err == nil || !strings.Contains(err.Error(), tc.err)) {
				t.Errorf("%s\nerror %v, want %q", tc.reason, err, tc.err)
			}
		})
	}
}
