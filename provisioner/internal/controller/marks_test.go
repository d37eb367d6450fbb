package controller

import (
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"

	corev1 "k8s.io/api/core/v1"
)

func TestMarks(t *testing.T) {
	var m marks
	first, second := time.Unix(1, 0), time.Unix(2, 0)
	if !m.empty() || m.has("a") {
		t.Error("the zero value has marks")
	}
	if got := m.put("a", first); got != first {
		t.Errorf("first mark at %v, want %v", got, first)
	}
	if got := m.put("a", second); got != first {
		t.Errorf("second mark moves the first to %v, want %v", got, first)
	}
	m.drop("b")
	if !m.has("a") || m.empty() {
		t.Error("the mark is lost")
	}
	m.drop("a")
	if m.has("a") || !m.empty() {
		t.Error("the mark stays")
	}
}

func TestRests(t *testing.T) {
	var r rests
	now := time.Unix(100, 0)
	says := func(what string) func() string { return func() string { return what } }
	if got := r.left("a", func() string { t.Error("the request of a claim that does not rest is looked at"); return "" }, now); got != 0 {
		t.Errorf("an unknown request rests for %v", got)
	}
	r.put("a", "x", now.Add(time.Minute))
	cases := map[string]struct {
		reason string
		what   string
		at     time.Time
		want   time.Duration
	}{
		"Begin":   {reason: "The rest is as long as it was set.", what: "x", at: now, want: time.Minute},
		"Middle":  {reason: "It ends at a moment, not after a number of looks.", what: "x", at: now.Add(50 * time.Second), want: 10 * time.Second},
		"Over":    {reason: "It ends.", what: "x", at: now.Add(2 * time.Minute)},
		"Changed": {reason: "It ends when the request changes.", what: "y", at: now},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			if got := r.left("a", says(tc.what), tc.at); got != tc.want {
				t.Errorf("%s\nleft %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
	if r.len() != 1 {
		t.Errorf("%d requests rest, want 1", r.len())
	}
	r.drop("a")
	if r.len() != 0 || r.left("a", says("x"), now) != 0 {
		t.Error("the request still rests")
	}
}

func TestFingerprint(t *testing.T) {
	base := fingerprint(newClaim(), newClass())
	if again := fingerprint(newClaim(), newClass()); again != base {
		t.Errorf("the same request has two fingerprints:\n%s\n%s", base, again)
	}
	claim := newClaim()
	claim.ResourceVersion, claim.Labels = "8", map[string]string{"a": "b"}
	if fingerprint(claim, newClass()) != base {
		t.Error("what is no part of the request changes the fingerprint")
	}
	claim = newClaim()
	claim.Spec.Resources.Requests[corev1.ResourceStorage] = resource.MustParse("2Gi")
	if fingerprint(claim, newClass()) == base {
		t.Error("another size has the same fingerprint")
	}
	claim = newClaim()
	claim.Annotations[AnnSelectedNode] = "n"
	if fingerprint(claim, newClass()) == base {
		t.Error("another node has the same fingerprint")
	}
	class := newClass()
	class.UID = "class-2"
	if fingerprint(newClaim(), class) == base {
		t.Error("another class has the same fingerprint")
	}
}
