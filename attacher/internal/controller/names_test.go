package controller

import (
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	tests := map[string]struct {
		reason    string
		driver    string
		finalizer string
		lease     string
	}{
		"Dots": {
			reason:    "dots become dashes, in both names",
			driver:    "hostpath.csi.k8s.io",
			finalizer: "external-attacher/hostpath-csi-k8s-io",
			lease:     "external-attacher-leader-hostpath-csi-k8s-io",
		},
		"UpperCase": {
			reason:    "letters stay as they are",
			driver:    "CSI.Example",
			finalizer: "external-attacher/CSI-Example",
			lease:     "external-attacher-leader-CSI-Example",
		},
		"TrailingDash": {
			reason:    "a name must not end in a dash",
			driver:    "odd_",
			finalizer: "external-attacher/odd-X",
			lease:     "external-attacher-leader-odd-X",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if got := FinalizerName(tt.driver); got != tt.finalizer {
				t.Errorf("%s: FinalizerName(%q) = %q, want %q", tt.reason, tt.driver, got, tt.finalizer)
			}
			if got := LeaseName(tt.driver); got != tt.lease {
				t.Errorf("%s: LeaseName(%q) = %q, want %q", tt.reason, tt.driver, got, tt.lease)
			}
		})
	}
}

func FuzzFinalizerName(f *testing.F) {
	for _, seed := range []string{"", "a.b", "-", "ä", "x_y-"} {
		f.Add(seed)
	}
	f.Fuzz(func(t *testing.T, driver string) {
		got := strings.TrimPrefix(FinalizerName(driver), "external-attacher/")
		if strings.HasSuffix(got, "-") {
			t.Errorf("FinalizerName(%q) = %q ends in a dash", driver, got)
		}
		for _, r := range got {
			if r != '-' && (r < '0' || r > '9') && (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') {
				t.Errorf("FinalizerName(%q) = %q contains %q", driver, got, r)
			}
		}
	})
}
