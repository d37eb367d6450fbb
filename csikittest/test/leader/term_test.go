package leader_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"

	"github.com/google/go-cmp/cmp"

	"github.com/longshore-csi/longshore/csikit/leader"
	"github.com/longshore-csi/longshore/csikittest/kubetest"
)

// TestTerms has several instances lead one after the other: each knows the Lease and how many holders were before it. A container that is restarted after a
// kill is the holder that it was; one that has given the Lease back is a new one.
func TestTerms(t *testing.T) {
	t.Parallel()
	synctest.Test(t, func(t *testing.T) {
		cluster := kubetest.New()
		var got []int32
		lead := func(who string, killed bool) {
			session := cluster.NewSession()
			err := leader.Run(t.Context(), leader.Config{Client: session.Client(), Namespace: namespace, Name: name, Identity: who}, func(ctx context.Context) error {
				term, ok := leader.TermOf(ctx)
				if l := lease(t, cluster); !ok || term.Lease != l.UID || term.Transitions != *l.Spec.LeaseTransitions {
					t.Errorf("term %+v of %s, %v: want that of the Lease %+v", term, who, ok, l)
				}
				got = append(got, term.Transitions)
				if killed {
					session.Cut()
				}
				return errors.New("done")
			})
			if err == nil {
				t.Error("no error")
			}
		}
		lead("a", false)
		lead("b", false)
		lead("b", true)
		lead("b", true)
		lead("a", false)
		if diff := cmp.Diff([]int32{0, 1, 2, 2, 3}, got); diff != "" {
			t.Errorf("transitions (-want +got):\n%s", diff)
		}
		if _, ok := leader.TermOf(t.Context()); ok {
			t.Error("a context of no leader has a term")
		}
	})
}
