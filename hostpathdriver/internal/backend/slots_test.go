package backend

import "testing"

func TestSlots(t *testing.T) {
	var s slots
	for i, want := range []bool{true, true, false} {
		if got := s.take("n1", 2); got != want {
			t.Errorf("slot %d: %t, want %t", i, got, want)
		}
	}
	s.release("n1")
	if !s.take("n1", 2) || !s.take("n2", 1) || s.take("n2", 1) {
		t.Error("a slot that was given back can be taken, each node has its own")
	}
	for range 100 {
		if !s.take("n3", 0) {
			t.Fatal("zero is no limit")
		}
	}
}
