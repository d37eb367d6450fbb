package e2e

import (
	"context"
	"fmt"
	"strings"

	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
)

// snapshotsAside are the questions that need no snapshots.
func snapshotsAside(all []question) (others []question) {
	for _, q := range all {
		if !strings.Contains(strings.ToLower(q.promql), "snapshot") {
			others = append(others, q)
		}
	}
	return others
}

// snapshotRound has one snapshot taken and deleted, and one refused by the driver: that of a claim whose volume is not there, which
// failEverywhere has made.
func (s *story) snapshotRound(round int) {
	s.t.Helper()
	class := s.decode(fmt.Sprintf(snapshotClass, s.Namespace, s.Driver))
	s.write(class...)
	s.t.Cleanup(func() { _ = s.NewWriter(s.t).Delete(context.Background(), class...) })
	of := func(name, claim string) *unstructured.Unstructured {
		o := s.decode(fmt.Sprintf(dynamicSnapshot, s.Namespace, name))[0]
		if err := unstructured.SetNestedField(o.Object, claim, "spec", "source", "persistentVolumeClaimName"); err != nil {
			s.t.Fatal(err)
		}
		s.write(o)
		return o
	}
	name := fmt.Sprintf("snapshot-%d", round)
	s.CreateClaim(name, s.ImmediateClass())
	s.WaitBound(name)
	good := of(name, name)
	bad := of(name+"-bad", fmt.Sprintf("%s-bad-%d-gone", s.Namespace, round))
	s.snapshotReady(good)
	s.Wait("the driver to refuse a snapshot", func(context.Context) (bool, error) {
		message, _, err := unstructured.NestedString(s.read(bad).Object, "status", "error", "message")
		return strings.Contains(message, "NotFound"), err
	})
	s.deleteSnapshot(good)
	s.deleteSnapshot(bad)
	s.DeleteClaim(name)
}
