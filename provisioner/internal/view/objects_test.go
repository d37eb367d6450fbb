package view

import (
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/longshore-csi/longshore/provisioner/internal/volume"
)

const plugin = "kubernetes.io/aws-ebs"

func TestDriverOf(t *testing.T) {
	cases := map[string]struct {
		reason      string
		annotations map[string]string
		want        string
	}{
		"Driver":     {reason: "The usual form.", annotations: map[string]string{AnnProvisioner: driver}, want: driver},
		"Beta":       {reason: "The deprecated form.", annotations: map[string]string{AnnBetaProvisioner: driver}, want: driver},
		"Both":       {reason: "The newer one wins.", annotations: map[string]string{AnnProvisioner: driver, AnnBetaProvisioner: "other"}, want: driver},
		"InTree":     {reason: "A claim that was not migrated is the plugin's.", annotations: map[string]string{AnnProvisioner: plugin}, want: plugin},
		"Migrated":   {reason: "A claim that was migrated is the driver's.", annotations: map[string]string{AnnProvisioner: plugin, volume.AnnMigratedTo: driver}, want: driver},
		"OldAndBeta": {reason: "Old versions of Kubernetes write the deprecated form.", annotations: map[string]string{AnnBetaProvisioner: plugin, volume.AnnMigratedTo: driver}, want: driver},
		"NotInTree": {
			reason: "A claim of another driver cannot be migrated, whatever its annotations say.", annotations: map[string]string{AnnProvisioner: "other", volume.AnnMigratedTo: driver}, want: "other",
		},
		"Nothing": {reason: "The controller manager has not decided yet.", annotations: map[string]string{volume.AnnMigratedTo: driver}},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			claim := newClaim()
			claim.Annotations = tc.annotations
			if got := DriverOf(claim); got != tc.want {
				t.Errorf("%s\ndriver %q, want %q", tc.reason, got, tc.want)
			}
		})
	}
}

func TestOurs(t *testing.T) {
	csi := newPV().Spec.PersistentVolumeSource
	inTree := corev1.PersistentVolumeSource{AWSElasticBlockStore: &corev1.AWSElasticBlockStoreVolumeSource{VolumeID: "vol-1"}}
	cases := map[string]struct {
		reason      string
		source      corev1.PersistentVolumeSource
		annotations map[string]string
		want        bool
	}{
		"Made":       {reason: "Volumes that were made here.", source: csi, annotations: map[string]string{volume.AnnProvisionedBy: driver}, want: true},
		"Other":      {reason: "Another provisioner has made it.", source: csi, annotations: map[string]string{volume.AnnProvisionedBy: "other"}},
		"ByHand":     {reason: "CSI volumes that were made by hand.", source: csi, want: true},
		"Migrated":   {reason: "The controller manager stands down.", source: inTree, annotations: map[string]string{volume.AnnProvisionedBy: plugin, volume.AnnMigratedTo: driver}, want: true},
		"RolledBack": {reason: "The controller manager deletes it.", source: inTree, annotations: map[string]string{volume.AnnProvisionedBy: plugin}},
		"Static":     {reason: "So it does with volumes that were made by hand for the plugin.", source: inTree},
		"StaticMigrated": {
			reason: "It stands down for them, too, when an administrator has added the annotation.", source: inTree, annotations: map[string]string{volume.AnnMigratedTo: driver}, want: true,
		},
		"MigratedElsewhere": {
			reason: "It was migrated to another driver.", source: inTree, annotations: map[string]string{volume.AnnProvisionedBy: plugin, volume.AnnMigratedTo: "other"},
		},
	}
	for name, tc := range cases {
		t.Run(name, func(t *testing.T) {
			pv := newPV()
			pv.Annotations, pv.Spec.PersistentVolumeSource = tc.annotations, tc.source
			if got := Ours(pv, driver); got != tc.want {
				t.Errorf("%s\nours: %v, want %v", tc.reason, got, tc.want)
			}
		})
	}
}
