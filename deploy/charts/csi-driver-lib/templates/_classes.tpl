{{/* StorageClasses: values storageClasses. */}}
{{- define "csi-driver-lib.storageclasses" -}}
{{- $expands := ne "" (include "csi-driver-lib.can" (list . "EXPAND_VOLUME")) -}}
{{- range .Values.storageClasses }}
---
apiVersion: storage.k8s.io/v1
kind: StorageClass
metadata:
  name: {{ .name }}
  labels: {{- include "csi-driver-lib.labels" $ | nindent 4 }}
  {{- if .default }}
  annotations:
    storageclass.kubernetes.io/is-default-class: "true"
  {{- end }}
provisioner: {{ $.Values.driver.name }}
volumeBindingMode: {{ .volumeBindingMode | default "WaitForFirstConsumer" }}
reclaimPolicy: {{ .reclaimPolicy | default "Delete" }}
allowVolumeExpansion: {{ dig "allowVolumeExpansion" $expands . }}
{{- with .parameters }}
parameters: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with .mountOptions }}
mountOptions: {{- toYaml . | nindent 0 }}
{{- end }}
{{- end }}
{{- end -}}

{{/* VolumeAttributesClasses: values volumeAttributesClasses. */}}
{{- define "csi-driver-lib.volumeattributesclasses" -}}
{{- range .Values.volumeAttributesClasses }}
---
apiVersion: storage.k8s.io/v1
kind: VolumeAttributesClass
metadata:
  name: {{ .name }}
  labels: {{- include "csi-driver-lib.labels" $ | nindent 4 }}
driverName: {{ $.Values.driver.name }}
parameters: {{- toYaml .parameters | nindent 2 }}
{{- end }}
{{- end -}}

{{/* Classes of snapshots: values snapshotClasses and groupSnapshotClasses. Helm refuses objects whose kind the API server does not serve yet. */}}
{{- define "csi-driver-lib.snapshotclasses" -}}
{{- $kinds := dict "VolumeSnapshotClass" "snapshot.storage.k8s.io/v1" "VolumeGroupSnapshotClass" "groupsnapshot.storage.k8s.io/v1beta2" }}
{{- $classes := dict "VolumeSnapshotClass" .Values.snapshotClasses "VolumeGroupSnapshotClass" .Values.groupSnapshotClasses }}
{{- range $kind, $version := $kinds }}
{{- if and $.Values.snapshots ($.Capabilities.APIVersions.Has $version) }}
{{- range get $classes $kind }}
---
apiVersion: {{ $version }}
kind: {{ $kind }}
metadata:
  name: {{ .name }}
  labels: {{- include "csi-driver-lib.labels" $ | nindent 4 }}
  {{- if .default }}
  annotations:
    {{ first (splitList "/" $version) | replace ".k8s.io" ".kubernetes.io" }}/is-default-class: "true"
  {{- end }}
driver: {{ $.Values.driver.name }}
deletionPolicy: {{ .deletionPolicy | default "Delete" }}
{{- with .parameters }}
parameters: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- end }}
{{- end -}}
