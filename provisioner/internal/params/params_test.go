package params

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

func TestParseDriverParameters(t *testing.T) {
	cases := map[string]struct {
		reason     string
		parameters map[string]string
		driver     map[string]string
		fsType     string
		errs       []string
	}{
		"Empty": {
			reason: "A class without parameters is a good one.",
			driver: map[string]string{},
		},
		"OwnParametersPass": {
			reason:     "What is not reserved belongs to the driver.",
			parameters: map[string]string{"type": "ssd", "example.com/x": ""},
			driver:     map[string]string{"type": "ssd", "example.com/x": ""},
		},
		"ReservedAreStripped": {
			reason: "Reserved parameters never reach the driver.",
			parameters: map[string]string{
				"csi.storage.k8s.io/fstype":                       "xfs",
				"csi.storage.k8s.io/secret-name":                  "s",
				"csi.storage.k8s.io/secret-namespace":             "ns",
				"csi.storage.k8s.io/node-expand-secret-name":      "s",
				"csi.storage.k8s.io/node-expand-secret-namespace": "ns",
				"a": "b",
			},
			driver: map[string]string{"a": "b"},
			fsType: "xfs",
		},
		"DeprecatedFSTypePasses": {
			reason:     "The bare key, in any case, is honoured and still reaches the driver.",
			parameters: map[string]string{"FsType": "ext4"},
			driver:     map[string]string{"FsType": "ext4"},
			fsType:     "ext4",
		},
		"FSTypeTwice": {
			reason:     "Two answers to one question are an error that names both keys.",
			parameters: map[string]string{"fstype": "ext4", "csi.storage.k8s.io/fstype": "xfs"},
			errs:       []string{`["csi.storage.k8s.io/fstype" "fstype"]`, "once only"},
		},
		"UnknownReserved": {
			reason:     "Misspelt reserved keys are all reported at once.",
			parameters: map[string]string{"csi.storage.k8s.io/fstyp": "xfs", "csi.storage.k8s.io/zzz": ""},
			errs:       []string{`"csi.storage.k8s.io/fstyp"`, `"csi.storage.k8s.io/zzz"`, "unknown parameter key"},
		},
		"MetadataIsNotForClasses": {
			reason:     "The keys of --extra-create-metadata may not be forged by a class.",
			parameters: map[string]string{KeyClaimName: "x"},
			errs:       []string{`"csi.storage.k8s.io/pvc/name"`},
		},
		"EverythingWrongAtOnce": {
			reason: "One look at the error shows all that is to be mended.",
			parameters: map[string]string{
				"fstype": "a", "FSTYPE": "b", "csi.storage.k8s.io/x": "", "csi.storage.k8s.io/secret-name": "s",
			},
			errs: []string{`["FSTYPE" "fstype"]`, `"csi.storage.k8s.io/x"`, `"csi.storage.k8s.io/secret-name" and "csi.storage.k8s.io/secret-namespace": must be set together`},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			class, err := Parse(tc.parameters)
			if checkErr(t, tc.reason, err, tc.errs) {
				return
			}
			if diff := cmp.Diff(tc.driver, class.Driver); diff != "" {
				t.Errorf("%s\ndriver parameters (-want +got):\n%s", tc.reason, diff)
			}
			if class.FSType != tc.fsType {
				t.Errorf("%s\nfile system type %q, want %q", tc.reason, class.FSType, tc.fsType)
			}
		})
	}
}

// checkErr compares an error with the texts that it must contain, and reports whether one was due.
func checkErr(t *testing.T, reason string, err error, want []string) bool {
	t.Helper()
	if len(want) == 0 {
		if err != nil {
			t.Fatalf("%s\nunexpected error: %v", reason, err)
		}
		return false
	}
	if err == nil {
		t.Fatalf("%s\nno error, want one with %q", reason, want)
	}
	for _, text := range want {
		if !strings.Contains(err.Error(), text) {
			t.Errorf("%s\nerror %q, want it to contain %q", reason, err, text)
		}
	}
	return true
}

func ref(namespace, name string) *corev1.SecretReference {
	return &corev1.SecretReference{Namespace: namespace, Name: name}
}

func TestParseIsNotConfusedByOrder(t *testing.T) {
	parameters := map[string]string{"csi.storage.k8s.io/b": "", "csi.storage.k8s.io/a": "", "csi.storage.k8s.io/c": ""}
	_, first := Parse(parameters)
	for range 20 {
		if _, err := Parse(parameters); err.Error() != first.Error() {
			t.Fatalf("the error depends on the order of a map:\n%v\n%v", first, err)
		}
	}
}
