package apitest

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestList(t *testing.T) {
	api, problems := list(t, "example.com/m", []string{"testdata/broken"})
	want := `package m/testdata/broken

const Limit
func (Good) Open() error
type Bare interface
type Bare interface, Hide func(secret.Type)
type Bare interface, Say func()
type Good struct
type Good struct, Field shown.Type

`
	if diff := cmp.Diff(want, api); diff != "" {
		t.Errorf("API (-want +got):\n%s", diff)
	}
	wrong := []string{
		"testdata/broken: Bare has no comment",
		"testdata/broken: secret.Type is of an internal package",
		"testdata/broken: Bare.Say has no comment",
		"testdata/broken: Open has no comment",
	}
	if diff := cmp.Diff(wrong, problems); diff != "" {
		t.Errorf("problems (-want +got):\n%s", diff)
	}
}
